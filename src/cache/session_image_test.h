// SPDX-License-Identifier: Apache-2.0
//
// A session in memory with every kind of layer, filled with bytes that are all different from zero: for the tests of
// layouts and files.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "cache/session_file.h"
#include "cache/state_shape.h"

namespace coluber {

inline SavedState test_state(const std::string& name, const Shape& shape, const StateSplit& split,
                             StateLaneOrder order = StateLaneOrder::kContract, DType dtype = DType::kFloat32) {
  SavedState state;
  state.name = name;
  state.dtype = dtype;
  state.shape = state.whole_shape = shape;
  state.split = split;
  state.order = order;
  return state;
}

// Mamba-2 (two groups), softmax attention with two heads and a note of 3 a token, a delta net, a custom layer, latent
// attention.
inline SessionLayout test_layout() {
  SessionLayout layout;
  layout.block_size = 4;
  const StateSplit::Part groups{2 * 16, 2, true};
  layout.layers.push_back({"layers.0",
                           "mamba2",
                           {test_state("conv", {3, 4 * 8 + 2 * 32}, {1, {{4 * 8, 4}, groups, groups}},
                                       StateLaneOrder::kContract, DType::kBFloat16),
                            test_state("recurrent", {4, 8, 16}, {0, {{4, 4}}}, StateLaneOrder::kHeadBlock16)},
                           {}});
  layout.layers.push_back({"layers.1", "full_attention", {}, SavedAttention{DType::kFloat16, 2, 2, 2, 5, 3, 0}});
  layout.layers.push_back({"layers.2",
                           "gdn",
                           {test_state("conv", {3, 2 * 12 + 4 * 5}, {1, {{12, 2, true}, {12, 2, true}, {20, 4}}}),
                            test_state("recurrent", {4, 5, 6}, {0, {{4, 4}}}, StateLaneOrder::kHeadBlock16)},
                           {}});
  layout.layers.push_back({"layers.3",
                           "custom",
                           {test_state("0", {37}, {}), test_state("1", {37, 3}, {}, StateLaneOrder::kChannelBlock16)},
                           {}});
  layout.layers.push_back({"layers.4", "full_attention", {}, SavedAttention{DType::kFloat32, 1, 1, 1, 7, 0, 0}});
  return changed_layout(layout, {});
}

// Pages end in zeros after the last token, as files have them.
inline SessionImage test_image(int64_t num_tokens = 10) {
  SessionImage image;
  image.model_name = "test";
  image.architecture = "TestForCausalLM";
  image.fingerprint = hash_text("test");
  image.vocab_size = 50;
  for (int32_t i = 0; i < num_tokens + 2; ++i) image.tokens.push_back(i * 7 % 50);
  image.num_computed_tokens = num_tokens;
  image.sampler = {0xFEDCBA9876543210ull, 5, true, num_tokens - 1};
  for (int i = 0; i < 50; ++i) image.logits.push_back(0.25f * static_cast<float>(i));
  image.layout = test_layout();
  auto bytes = std::make_shared<std::vector<std::vector<std::byte>>>();
  const auto filled = [](int64_t size, uint32_t seed) {
    std::vector<std::byte> out(static_cast<size_t>(size));
    for (std::byte& value : out) {
      seed = seed * 1664525u + 1013904223u;
      value = std::byte{static_cast<uint8_t>(1 + (seed >> 24) % 255)};
    }
    return out;
  };
  bytes->push_back(filled(image.layout.slot_bytes, 1));
  for (int64_t page = 0; page < image.layout.num_pages(num_tokens); ++page)
    bytes->push_back(filled(image.layout.page_bytes, static_cast<uint32_t>(page) + 2));
  image.bytes.states = bytes->front();
  image.bytes.pages.assign(bytes->begin() + 1, bytes->end());
  image.bytes.owners.push_back(std::move(bytes));
  return image;
}

}  // namespace coluber
