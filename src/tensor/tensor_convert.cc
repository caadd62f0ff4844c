// SPDX-License-Identifier: Apache-2.0
#include "tensor/tensor_convert.h"

#include <algorithm>

#include "base/error.h"

namespace coluber {
namespace {

void convert_dimension(const TensorView& view, int dimension, int64_t offset, float*& out) {
  const int64_t size = view.shape[dimension], stride = view.strides[dimension];
  const int64_t element_bytes = dtype_size(view.dtype);
  if (dimension + 1 < view.shape.rank()) {
    for (int64_t i = 0; i < size; ++i) convert_dimension(view, dimension + 1, offset + i * stride, out);
    return;
  }
  if (stride == 1) {
    convert_to_float(view.data + offset * element_bytes, view.dtype, size, out);
  } else {
    for (int64_t i = 0; i < size; ++i) {
      convert_to_float(view.data + (offset + i * stride) * element_bytes, view.dtype, 1, out + i);
    }
  }
  out += size;
}

void put_in_order(const TensorView& view, float* values) {
  const int64_t cols = view.shape[view.shape.rank() - 1];
  std::vector<float> row(static_cast<size_t>(cols));
  for (float* end = values + view.shape.count(); values < end; values += cols) {
    std::copy_n(values, cols, row.begin());
    for (int64_t i = 0; i < cols; ++i) values[view.column_order[i]] = row[static_cast<size_t>(i)];
  }
}

}  // namespace

void convert_to_float(const TensorView& view, float* out) {
  const int64_t count = view.shape.count();
  if (count == 0) return;
  if (view.is_contiguous()) {
    convert_to_float(view.data, view.dtype, count, out);
  } else {
    float* next = out;
    convert_dimension(view, 0, 0, next);
  }
  if (view.column_order != nullptr) put_in_order(view, out);
}

std::vector<float> to_float_vector(const TensorView& view) {
  std::vector<float> values(static_cast<size_t>(view.shape.count()));
  convert_to_float(view, values.data());
  return values;
}

}  // namespace coluber
