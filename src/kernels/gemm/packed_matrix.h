// SPDX-License-Identifier: Apache-2.0
//
// A weight matrix W [N, K] packed once at load for the matrix products of this processor. Owns its memory. The element type is
// the one it was stored in (float32, bfloat16, float16): products widen in registers.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/thread_pool.h"
#include "coluber/tensor_view.h"

namespace coluber {

class PackedMatrix {
 public:
  PackedMatrix() = default;
  // `weight`: [N, K], rows may be strided, elements of a row contiguous.
  static PackedMatrix pack(const TensorView& weight, ThreadPool& pool);

  int64_t n() const noexcept { return n_; }
  int64_t k() const noexcept { return k_; }
  DType dtype() const noexcept { return dtype_; }
  int64_t bytes() const noexcept { return bytes_; }
  const std::byte* data() const noexcept { return data_.get(); }
  // Writes row `row` as float32 [K]: the embedding look-up of a tied head.
  void unpack_row(int64_t row, float* out) const;

 private:
  struct Free {
    void operator()(std::byte* memory) const noexcept;
  };
  std::unique_ptr<std::byte[], Free> data_;
  DType dtype_ = DType::kFloat32;
  int64_t n_ = 0, k_ = 0, bytes_ = 0;
};

}  // namespace coluber
