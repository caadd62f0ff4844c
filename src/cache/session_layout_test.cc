// SPDX-License-Identifier: Apache-2.0
#include "cache/session_layout.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/error.h"
#include "cache/session_image_test.h"

namespace coluber {
namespace {

std::vector<std::byte> bytes_of(const SessionImage& image, const SavedState& state) {
  const auto part = image.bytes.states.subspan(static_cast<size_t>(state.offset), static_cast<size_t>(state.bytes()));
  return {part.begin(), part.end()};
}

// A token's elements of one layer, whatever the page size.
std::vector<std::byte> token_bytes(const SessionImage& image, size_t layer, int64_t token) {
  const SavedAttention& a = *image.layout.layers[layer].attention;
  const int64_t block = image.layout.block_size, element = dtype_size(a.dtype),
                row = a.kv_heads * a.head_size * element;
  const std::byte* page = image.bytes.pages[static_cast<size_t>(token / block)].data() + a.offset;
  std::vector<std::byte> out;
  for (int64_t plane = 0; plane < a.planes; ++plane) {
    const std::byte* from = page + plane * block * row + token % block * row;
    out.insert(out.end(), from, from + row);
  }
  const std::byte* extra = page + a.planes * block * row + token % block * a.extra * element;
  out.insert(out.end(), extra, extra + a.extra * element);
  return out;
}

// Kernels' orders are not kept across layouts of others, so states are compared in the contract's order.
SessionImage packed(const SessionImage& image) {
  return convert_session_image(
      {&image, 1}, {.packing = StatePacking::kContract, .conv = ConvLayout::kSd, .block_size = {}, .rank = {}});
}

void expect_same_content(const SessionImage& a, const SessionImage& b) {
  const SessionImage x = packed(a), y = packed(b);
  ASSERT_EQ(x.layout.layers.size(), y.layout.layers.size());
  for (size_t l = 0; l < x.layout.layers.size(); ++l) {
    for (size_t i = 0; i < x.layout.layers[l].states.size(); ++i)
      EXPECT_EQ(bytes_of(x, x.layout.layers[l].states[i]), bytes_of(y, y.layout.layers[l].states[i])) << l << "." << i;
    if (!x.layout.layers[l].attention) continue;
    for (int64_t t = 0; t < a.num_computed_tokens; ++t) EXPECT_EQ(token_bytes(a, l, t), token_bytes(b, l, t)) << l;
  }
}

TEST(SessionLayout, PlacesStatesAsTheEngineDoes) {
  const SessionLayout layout = test_layout();
  for (const SavedLayer& layer : layout.layers)
    for (const SavedState& state : layer.states) EXPECT_EQ(state.offset % kStateAlignment, 0);
  EXPECT_EQ(layout.slot_bytes % kStateAlignment, 0);
  const SessionLayout tight =
      changed_layout(layout, {.packing = StatePacking::kContract, .conv = {}, .block_size = {}, .rank = {}});
  int64_t bytes = 0;
  for (const SavedLayer& layer : layout.layers) bytes += layer.state_bytes();
  EXPECT_EQ(tight.slot_bytes, bytes);
}

TEST(SessionLayout, PacksAsTheContractDoes) {
  const SessionImage image = test_image();
  const SessionImage tight = packed(image);
  // [H][C/16][N][16] with 8 channels is [H][N][8]: element (h, c, n).
  const SavedState& own = image.layout.layers[0].states[1];
  const SavedState& contract = tight.layout.layers[0].states[1];
  EXPECT_EQ(contract.order, StateLaneOrder::kContract);
  for (int64_t h = 0; h < 4; ++h)
    for (int64_t c = 0; c < 8; ++c)
      for (int64_t n = 0; n < 16; ++n)
        ASSERT_EQ(std::memcmp(tight.bytes.states.data() + contract.offset + ((h * 8 + c) * 16 + n) * 4,
                              image.bytes.states.data() + own.offset + (h * 128 + n * 8 + c) * 4, 4),
                  0);
}

TEST(SessionLayout, TurnsConvolutionWindows) {
  const SessionImage image = test_image();
  const SessionImage turned =
      convert_session_image({&image, 1}, {.packing = {}, .conv = ConvLayout::kDs, .block_size = {}, .rank = {}});
  const SavedState& sd = image.layout.layers[0].states[0];
  const SavedState& ds = turned.layout.layers[0].states[0];
  EXPECT_EQ(ds.conv, ConvLayout::kDs);
  for (int64_t w = 0; w < 3; ++w)
    for (int64_t c = 0; c < 96; ++c)
      ASSERT_EQ(std::memcmp(turned.bytes.states.data() + ds.offset + (c * 3 + w) * 2,
                            image.bytes.states.data() + sd.offset + (w * 96 + c) * 2, 2),
                0);
  expect_same_content(image, turned);
}

TEST(SessionLayout, PagesOfAnyLengthHoldTheSameTokens) {
  const SessionImage image = test_image(11);
  for (int64_t block : {1, 3, 16}) {
    const SessionImage other =
        convert_session_image({&image, 1}, {.packing = {}, .conv = {}, .block_size = block, .rank = {}});
    EXPECT_EQ(std::ssize(other.bytes.pages), (11 + block - 1) / block);
    expect_same_content(image, other);
  }
}

TEST(SessionLayout, SharesPutTogetherAreTheWhole) {
  const SessionImage image = test_image();
  for (int64_t ranks : {1, 2, 4}) {
    for (ConvLayout conv : {ConvLayout::kSd, ConvLayout::kDs}) {
      for (StatePacking packing : {StatePacking::kAligned, StatePacking::kContract}) {
        std::vector<SessionImage> parts;
        for (int64_t r = 0; r < ranks; ++r)
          parts.push_back(convert_session_image(
              {&image, 1}, {.packing = packing, .conv = conv, .block_size = 2, .rank = {ranks, r}}));
        const SessionImage whole = convert_session_image(
            parts, {.packing = StatePacking::kAligned, .conv = ConvLayout::kSd, .block_size = 4, .rank = {}});
        expect_same_content(image, whole);
      }
    }
  }
}

TEST(SessionLayout, ASharedGroupGoesToSeveralRanks) {
  const SessionImage image = test_image();
  std::vector<SessionImage> parts;
  for (int64_t r = 0; r < 4; ++r)
    parts.push_back(convert_session_image({&image, 1}, {.packing = {}, .conv = {}, .block_size = {}, .rank = {4, r}}));
  // Two groups, two attention heads on four ranks: each rank has one.
  EXPECT_EQ(parts[1].layout.layers[0].states[0].shape, (Shape{3, 8 + 2 * 16}));
  EXPECT_EQ(parts[3].layout.layers[1].attention->kv_heads, 1);
  EXPECT_EQ(token_bytes(parts[2], 1, 5), token_bytes(parts[3], 1, 5));
  EXPECT_NE(token_bytes(parts[1], 1, 5), token_bytes(parts[2], 1, 5));
}

TEST(SessionLayout, PartsOfDifferentSessionsAreRefused) {
  const SessionImage image = test_image();
  std::vector<SessionImage> parts;
  for (int64_t r = 0; r < 2; ++r)
    parts.push_back(convert_session_image({&image, 1}, {.packing = {}, .conv = {}, .block_size = {}, .rank = {2, r}}));
  const LayoutChange whole;
  EXPECT_THROW(convert_session_image({parts.data(), 1}, whole), Error);  // one of two
  std::swap(parts[0], parts[1]);
  EXPECT_THROW(convert_session_image(parts, whole), Error);  // in the wrong order
  std::swap(parts[0], parts[1]);
  EXPECT_NO_THROW(convert_session_image(parts, whole));
  // The custom layer's states are the same on every rank.
  std::vector<std::byte> states(parts[1].bytes.states.begin(), parts[1].bytes.states.end());
  states[static_cast<size_t>(parts[1].layout.layers[3].states[0].offset)] ^= std::byte{1};
  parts[1].bytes.states = states;
  EXPECT_THROW(convert_session_image(parts, whole), Error);
  parts[1] = convert_session_image({&image, 1}, {.packing = {}, .conv = {}, .block_size = {}, .rank = {2, 1}});
  parts[1].tokens.back() ^= 1;
  EXPECT_THROW(convert_session_image(parts, whole), Error);
}

TEST(SessionLayout, HeadsThatCannotBeSharedOutAreNamed) {
  const SessionImage image = test_image();
  try {
    convert_session_image({&image, 1}, {.packing = {}, .conv = {}, .block_size = {}, .rank = {3, 0}});
    FAIL() << "three ranks for four heads";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidConfig);
    EXPECT_NE(std::string(error.what()).find("layers.0"), std::string::npos) << error.what();
  }
}

TEST(SessionLayout, DifferencesAreTold) {
  const SessionLayout layout = test_layout();
  EXPECT_EQ(difference(layout, layout), "");
  SessionLayout other = layout;
  other.layers[0].states[1].dtype = DType::kBFloat16;
  EXPECT_NE(difference(layout, other).find("float32 and bfloat16"), std::string::npos);
  other = layout;
  other.layers[4].attention->head_size = 8;
  EXPECT_NE(difference(layout, other).find("layers.4"), std::string::npos);
  other = layout;
  other.layers.pop_back();
  EXPECT_NE(difference(layout, other), "");
}

// The shares are those that the contract's calculators give.
TEST(SessionLayout, SharesHaveTheContractsShapes) {
  const Mamba2StateSizes sizes{
      .intermediate_size = 64, .n_groups = 2, .num_heads = 8, .head_dim = 8, .state_size = 16, .conv_kernel = 4};
  const std::vector<Shape> whole = mamba2_state_shape(1, sizes, 0);
  const StateSplit conv{1, {{64, 8}, {32, 2, true}, {32, 2, true}}}, heads{0, {{8, 8}}};
  for (int64_t ranks : {1, 2, 4, 8}) {
    const std::vector<Shape> local = mamba2_state_shape(ranks, sizes, 0);
    EXPECT_EQ(local_shape(conv, whole[0], {ranks, ranks - 1}, "conv"), local[0]) << ranks;
    EXPECT_EQ(local_shape(heads, whole[1], {ranks, ranks - 1}, "recurrent"), local[1]) << ranks;
  }
}

}  // namespace
}  // namespace coluber
