// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstdlib>
#include <span>

#include "base/error.h"
#include "formats/safetensors.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

// What the reader promises of a header that it accepts, checked without its help.
void check_promises(const coluber::SafetensorsHeader& header, std::span<const std::byte> file) {
  require(header.data_offset >= 8 && header.data_offset <= static_cast<int64_t>(file.size()));
  const auto data = file.subspan(static_cast<size_t>(header.data_offset));
  int64_t covered = 0;
  size_t sum = 0;
  for (const coluber::SafetensorsEntry& entry : header.entries) {
    require(entry.begin == covered && entry.end >= entry.begin && entry.end <= static_cast<int64_t>(data.size()));
    covered = entry.end;
    if (entry.begin < entry.end) {
      sum += static_cast<size_t>(data[static_cast<size_t>(entry.begin)]);
      sum += static_cast<size_t>(data[static_cast<size_t>(entry.end) - 1]);
    }
    if (!entry.dtype) continue;
    unsigned __int128 bytes = static_cast<unsigned>(coluber::dtype_size(*entry.dtype));
    for (const int64_t size : entry.shape) {
      require(size >= 0);
      bytes *= static_cast<uint64_t>(size);
    }
    require(bytes == static_cast<uint64_t>(entry.end - entry.begin));
  }
  require(covered == static_cast<int64_t>(data.size()));
  require(sum <= 2 * 255 * header.entries.size());  // uses the bytes, so that they are really read
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> file = std::as_bytes(std::span(data, size));
  try {
    check_promises(coluber::parse_safetensors(file, "fuzz"), file);
  } catch (const coluber::Error& error) {
    require(error.code() == coluber::ErrorCode::kInvalidData);
  }
  return 0;
}
