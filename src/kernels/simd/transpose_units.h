// SPDX-License-Identifier: Apache-2.0
//
// Rows of a file to the columns that vector lanes read, at load: squares of units of 1, 2 or 4 bytes, 16 bytes a row,
// transposed in registers that every processor of the architecture has. There is no choice at run time: what bounds
// loading is memory. Rows lie at any address. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

namespace coluber {

template <typename Unit>
class UnitSquare {
 public:
  static constexpr int kSide = static_cast<int>(16 / sizeof(Unit));

  // to[c][r] = from[r][c], of kSide rows and columns; strides in bytes.
  static void transpose(const std::byte* from, int64_t from_stride, std::byte* to, int64_t to_stride) noexcept {
    Vector a[kSide], b[kSide];
    for (int i = 0; i < kSide; ++i) std::memcpy(&a[i], from + i * from_stride, sizeof(Vector));
    // Each round turns the number (row, column) of a unit left by one bit.
    Vector *in = a, *out = b;
    for (int round = 1; round < kSide; round *= 2) {
      for (int i = 0; i < kSide / 2; ++i)
        zip(in[i], in[i + kSide / 2], out + static_cast<ptrdiff_t>(2) * i, std::make_index_sequence<kSide>());
      std::swap(in, out);
    }
    for (int i = 0; i < kSide; ++i) std::memcpy(to + i * to_stride, &in[i], sizeof(Vector));
  }

 private:
  typedef Unit Vector __attribute__((vector_size(16)));

  template <size_t... kAt>
  static void zip(Vector a, Vector b, Vector* out, std::index_sequence<kAt...>) noexcept {
    out[0] = __builtin_shufflevector(a, b, (kAt / 2 + kAt % 2 * kSide)...);
    out[1] = __builtin_shufflevector(a, b, (kSide / 2 + kAt / 2 + kAt % 2 * kSide)...);
  }
};

}  // namespace coluber
