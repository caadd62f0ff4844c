// SPDX-License-Identifier: Apache-2.0
#include "cache/finite.h"

#include <algorithm>
#include <cstring>

namespace coluber {

namespace {

// Infinities and NaN have every bit of the exponent set. Blocks without a branch inside let the compiler use vectors,
// and elements are read where they lie.
template <typename Bits>
bool no_full_exponent(const std::byte* data, int64_t count, Bits exponent) {
  constexpr int64_t kBlock = 1024;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t size = std::min(kBlock, count - begin);
    const std::byte* block = data + begin * static_cast<int64_t>(sizeof(Bits));
    Bits bad = 0;
    for (int64_t i = 0; i < size; ++i) {
      Bits bits;
      std::memcpy(&bits, block + i * static_cast<int64_t>(sizeof(Bits)), sizeof(Bits));
      bad |= static_cast<Bits>((bits & exponent) == exponent);
    }
    if (bad != 0) return false;
  }
  return true;
}

}  // namespace

bool all_finite(const std::byte* data, DType dtype, int64_t count) {
  switch (dtype) {
    case DType::kFloat32:
      return no_full_exponent<uint32_t>(data, count, 0x7f800000u);
    case DType::kBFloat16:
      return no_full_exponent<uint16_t>(data, count, 0x7f80u);
    case DType::kFloat16:
      return no_full_exponent<uint16_t>(data, count, 0x7c00u);
    default:
      return true;
  }
}

}  // namespace coluber
