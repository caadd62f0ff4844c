// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string_view>

#include "base/error.h"
#include "cache/session_header.h"

namespace {

using coluber::Error;
using coluber::ErrorCode;
using coluber::SessionImage;

constexpr int64_t kMostBytes = 1 << 20;

void require(bool condition) {
  if (!condition) std::abort();
}

// Every byte that an accepted image points to is read, by turning it into another layout and back.
void convert(const SessionImage& image) {
  try {
    const SessionImage packed = coluber::convert_session_image(
        {&image, 1}, {coluber::StatePacking::kContract, coluber::ConvLayout::kDs, 3, {}});
    const SessionImage back = coluber::convert_session_image(
        {&packed, 1}, {image.layout.packing, coluber::ConvLayout::kSd, image.layout.block_size, {}});
    require(coluber::difference(image.layout, back.layout).empty());
  } catch (const Error& error) {
    require(error.code() == ErrorCode::kInvalidConfig || error.code() == ErrorCode::kInvalidData);
  }
}

// A header whose checksums nobody could guess: as if everything else about the file were right.
void take_header(std::string_view text) {
  coluber::SessionHeader header =
      coluber::parse_session_header(coluber::value_or_throw(coluber::parse_json(text, "fuzz")));
  SessionImage& image = header.image;
  const coluber::SessionLayout& layout = image.layout;
  const int64_t pages = layout.num_pages(image.num_computed_tokens);
  // Shares may describe a whole that is far larger than they are; joining needs all of them, and there is one.
  if (layout.slot_bytes > kMostBytes || image.num_computed_tokens > 4096 || pages * layout.page_bytes > kMostBytes)
    return;
  for (const coluber::SavedLayer& layer : layout.layers)
    if (layer.attention && layer.attention->whole_kv_heads * layer.attention->head_size > kMostBytes) return;
  auto bytes =
      std::make_shared<std::vector<std::byte>>(static_cast<size_t>(layout.slot_bytes + pages * layout.page_bytes));
  const std::span<const std::byte> all(*bytes);
  image.tokens.resize(static_cast<size_t>(header.num_tokens));
  image.bytes.states = all.first(static_cast<size_t>(layout.slot_bytes));
  for (int64_t page = 0; page < pages; ++page)
    image.bytes.pages.push_back(all.subspan(static_cast<size_t>(layout.slot_bytes + page * layout.page_bytes),
                                            static_cast<size_t>(layout.page_bytes)));
  image.bytes.owners.push_back(bytes);
  convert(image);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    if (size > 0 && data[0] == '{')
      take_header({reinterpret_cast<const char*>(data), size});
    else
      convert(coluber::parse_session(std::as_bytes(std::span(data, size)), "fuzz"));
  } catch (const Error& error) {
    require(error.code() == ErrorCode::kInvalidData || error.code() == ErrorCode::kUnsupported ||
            error.code() == ErrorCode::kInvalidConfig);
  }
  return 0;
}
