// SPDX-License-Identifier: Apache-2.0
#include "cache/finite.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace coluber {
namespace {

struct Kind {
  DType dtype;
  uint32_t largest;  // the bits of the largest finite number
  uint32_t infinity;
  uint32_t quiet_nan;
};

constexpr Kind kKinds[] = {{DType::kFloat32, 0x7f7fffffu, 0x7f800000u, 0x7fc00000u},
                           {DType::kBFloat16, 0x7f7fu, 0x7f80u, 0x7fc0u},
                           {DType::kFloat16, 0x7bffu, 0x7c00u, 0x7e00u}};

// From an odd address: rows of narrow states lie anywhere.
class Numbers {
 public:
  Numbers(const Kind& kind, int64_t count)
      : size_(dtype_size(kind.dtype)), bytes_(static_cast<size_t>(1 + count * size_)) {
    for (int64_t i = 0; i < count; ++i) set(i, kind.largest | (i % 2 != 0 ? sign() : 0));
  }
  uint32_t sign() const { return uint32_t{1} << (8 * size_ - 1); }
  void set(int64_t i, uint32_t bits) { std::memcpy(bytes_.data() + 1 + i * size_, &bits, static_cast<size_t>(size_)); }
  const std::byte* data() const { return bytes_.data() + 1; }

 private:
  int64_t size_;
  std::vector<std::byte> bytes_;
};

TEST(AllFinite, FindsOneNumberWhereverItIs) {
  for (const Kind& kind : kKinds) {
    for (const int64_t count : {1, 7, 64, 1023, 1024, 1025, 2100}) {
      Numbers numbers(kind, count);
      ASSERT_TRUE(all_finite(numbers.data(), kind.dtype, count)) << count << " of the largest numbers";
      for (const uint32_t bad : {kind.infinity, kind.quiet_nan, kind.infinity | 1u, kind.infinity | numbers.sign()}) {
        for (int64_t at = 0; at < count; at += count < 100 ? 1 : 61) {
          numbers.set(at, bad);
          EXPECT_FALSE(all_finite(numbers.data(), kind.dtype, count)) << std::hex << bad << std::dec << " at " << at;
          EXPECT_TRUE(all_finite(numbers.data(), kind.dtype, at)) << "what lies before " << at;
          numbers.set(at, kind.largest);
        }
        numbers.set(count - 1, bad);
        EXPECT_FALSE(all_finite(numbers.data(), kind.dtype, count)) << std::hex << bad << " at the end";
        numbers.set(count - 1, kind.largest);
      }
    }
  }
}

}  // namespace
}  // namespace coluber
