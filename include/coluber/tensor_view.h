// SPDX-License-Identifier: Apache-2.0
//
// A typed, strided view of memory that somebody else owns. Never allocates, never frees.
//
// Letters used for sizes everywhere: T tokens in the step, B sequences (R rows of a batch), H heads, G groups,
// P head dim, N state dim, D model dim, V vocabulary, W conv width, K and V key and value dim where no other meaning is
// near.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "coluber/dtype.h"

namespace coluber {

inline constexpr int kMaxRank = 6;

// Up to kMaxRank sizes, held in place.
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<int64_t> sizes);
  explicit Shape(std::span<const int64_t> sizes);  // throws Error(kInvalidArgument) beyond kMaxRank or below zero

  int rank() const noexcept { return rank_; }
  int64_t operator[](int i) const noexcept { return sizes_[static_cast<size_t>(i)]; }
  int64_t& operator[](int i) noexcept { return sizes_[static_cast<size_t>(i)]; }
  int64_t count() const;  // product of the sizes; throws on overflow
  const int64_t* begin() const noexcept { return sizes_.data(); }
  const int64_t* end() const noexcept { return sizes_.data() + rank_; }
  std::string to_string() const;  // "[2, 3]"
  bool operator==(const Shape& other) const noexcept;

 private:
  std::array<int64_t, kMaxRank> sizes_{};
  int rank_ = 0;
};

// Row-major strides, in elements.
Shape contiguous_strides(const Shape& shape);

struct TensorView {
  std::byte* data = nullptr;
  DType dtype = DType::kFloat32;
  Shape shape;
  Shape strides;  // in elements
  // Which column each element of a row is of, where that is not its own place (quantised weights whose groups are
  // scattered): a permutation of [0, K), the same for all rows. Null: columns stand in order.
  const int32_t* column_order = nullptr;

  static TensorView contiguous(const void* data, DType dtype, const Shape& shape);
  template <typename T>
  T* as() const noexcept {
    return reinterpret_cast<T*>(data);
  }
  bool is_contiguous() const noexcept;
  int64_t size_bytes() const { return dtype_bytes(dtype, shape.count()); }
};

}  // namespace coluber
