// SPDX-License-Identifier: Apache-2.0
#include "formats/tensor_file.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace coluber {
namespace {

// Appends the rows from `dimension` on to `out`.
void copy_rows(const TensorView& view, int dimension, const std::byte* data, size_t element_bytes, std::byte*& out) {
  if (dimension == view.shape.rank()) {
    std::memcpy(out, data, element_bytes);
    out += element_bytes;
    return;
  }
  const int64_t size = view.shape[dimension];
  const int64_t stride_bytes = view.strides[dimension] * static_cast<int64_t>(element_bytes);
  if (dimension + 1 == view.shape.rank() && stride_bytes == static_cast<int64_t>(element_bytes)) {
    const size_t bytes = static_cast<size_t>(size) * element_bytes;
    std::memcpy(out, data, bytes);
    out += bytes;
    return;
  }
  for (int64_t i = 0; i < size; ++i) copy_rows(view, dimension + 1, data + i * stride_bytes, element_bytes, out);
}

}  // namespace

TensorView TensorCopies::row_major(const std::string& name, const TensorView& view) const {
  const auto element_bytes = static_cast<size_t>(dtype_size(view.dtype));
  if (view.is_contiguous() && reinterpret_cast<uintptr_t>(view.data) % element_bytes == 0)
    return TensorView::contiguous(view.data, view.dtype, view.shape);
  const std::lock_guard lock(mutex_);
  std::unique_ptr<std::byte[]>& copy = copies_[name];
  if (copy == nullptr) {
    copy.reset(new std::byte[std::max<size_t>(static_cast<size_t>(view.size_bytes()), 1)]);
    std::byte* out = copy.get();
    if (view.shape.count() > 0) copy_rows(view, 0, view.data, element_bytes, out);
  }
  return TensorView::contiguous(copy.get(), view.dtype, view.shape);
}

}  // namespace coluber
