// SPDX-License-Identifier: Apache-2.0
#include "coluber/tensor_view.h"

#include <algorithm>

#include "base/error.h"

namespace coluber {

Shape::Shape(std::initializer_list<int64_t> sizes) : Shape(std::span(sizes.begin(), sizes.size())) {}

Shape::Shape(std::span<const int64_t> sizes) {
  if (sizes.size() > static_cast<size_t>(kMaxRank)) {
    throw make_error(ErrorCode::kInvalidArgument, "a shape of {} dimensions; at most {} are supported", sizes.size(),
                     kMaxRank);
  }
  for (const int64_t size : sizes) {
    if (size < 0) throw make_error(ErrorCode::kInvalidArgument, "a shape with the negative size {}", size);
    sizes_[static_cast<size_t>(rank_++)] = size;
  }
}

int64_t Shape::count() const {
  // Zero wins over overflow: [0, 2^40, 2^40] is an empty tensor, not a mistake.
  if (std::find(begin(), end(), 0) != end()) return 0;
  int64_t product = 1;
  for (const int64_t size : *this) {
    if (__builtin_mul_overflow(product, size, &product)) {
      throw make_error(ErrorCode::kInvalidArgument, "the shape {} has more elements than can be counted", to_string());
    }
  }
  return product;
}

std::string Shape::to_string() const {
  std::string text = "[";
  for (int i = 0; i < rank_; ++i) {
    if (i > 0) text += ", ";
    text += std::to_string((*this)[i]);
  }
  return text + "]";
}

bool Shape::operator==(const Shape& other) const noexcept {
  return std::equal(begin(), end(), other.begin(), other.end());
}

Shape contiguous_strides(const Shape& shape) {
  Shape strides = shape;
  int64_t stride = 1;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    strides[i] = stride;
    // Wraps only in a tensor without elements, whose strides are never used.
    if (__builtin_mul_overflow(stride, std::max<int64_t>(shape[i], 1), &stride)) stride = 1;
  }
  return strides;
}

TensorView TensorView::contiguous(const void* data, DType dtype, const Shape& shape) {
  shape.count();  // refuses what the strides could not hold
  return {const_cast<std::byte*>(static_cast<const std::byte*>(data)), dtype, shape, contiguous_strides(shape)};
}

bool TensorView::is_contiguous() const noexcept {
  int64_t stride = 1;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    if (shape[i] == 0) return true;
    if (shape[i] != 1 && strides[i] != stride) return false;  // the stride of a single element is never used
    stride *= shape[i];
  }
  return true;
}

}  // namespace coluber
