// SPDX-License-Identifier: Apache-2.0
#include "formats/tensor_output.h"

#include "base/error.h"

namespace coluber {
namespace {

class CountingWriter final : public FileWriter {
 public:
  explicit CountingWriter(FileWriter& to) : to_(to) {}
  void append(std::span<const std::byte> bytes) override {
    count_ += static_cast<int64_t>(bytes.size());
    to_.append(bytes);
  }
  int64_t count() const noexcept { return count_; }

 private:
  FileWriter& to_;
  int64_t count_ = 0;
};

void append_rows(const TensorView& view, int dimension, const std::byte* data, FileWriter& out) {
  const int64_t element_bytes = dtype_size(view.dtype);
  if (dimension == view.shape.rank()) return out.append({data, static_cast<size_t>(element_bytes)});
  const int64_t size = view.shape[dimension], stride_bytes = view.strides[dimension] * element_bytes;
  if (dimension + 1 == view.shape.rank() && stride_bytes == element_bytes) {
    return out.append({data, static_cast<size_t>(size * element_bytes)});
  }
  for (int64_t i = 0; i < size; ++i) append_rows(view, dimension + 1, data + i * stride_bytes, out);
}

}  // namespace

TensorOutput TensorOutput::from_view(std::string name, const TensorView& view) {
  return {std::move(name), view.dtype, view.shape, [view](FileWriter& out) {
            if (view.shape.count() > 0) append_rows(view, 0, view.data, out);
          }};
}

void append_tensor(const TensorOutput& tensor, FileWriter& out) {
  CountingWriter counting(out);
  tensor.write(counting);
  const int64_t expected = dtype_bytes(tensor.dtype, tensor.shape.count());
  COLUBER_CHECK(counting.count() == expected, "tensor {} wrote {} bytes, not {}", tensor.name, counting.count(),
                expected);
}

}  // namespace coluber
