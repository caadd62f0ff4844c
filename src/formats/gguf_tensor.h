// SPDX-License-Identifier: Apache-2.0
//
// One tensor as a checkpoint of Hugging Face has it, put together from those that a GGUF file stores: what the rules of
// gguf_rules.h say, undone. Rows that are only moved stay in their type, blocks and all; columns whose move would cut
// blocks stay where they are, and their order is told; where values change, the tensor is computed in float32. Owns
// nothing: the file and the rules outlive it. Immutable; who has a pool of threads lends it to one caller at a time.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "coluber/tensor_view.h"
#include "formats/gguf_rules.h"

namespace coluber {

struct GgufSource {
  const GgufTensor* tensor = nullptr;
  const GgufTensorRule* rule = nullptr;  // null: as stored
  int64_t layer = 0;
  int64_t expert = 0;
};

// How many tensors of ours the rule makes of this one: its experts, or 1. Throws Error(kInvalidData).
int64_t count_of_experts(const GgufTensor& tensor, const GgufTensorRule& rule, const std::string& path);

class GgufTensorPlan {
 public:
  // Throws Error(kInvalidData) where the stored sizes do not fit the rule, naming the tensor. A tensor of a type that
  // is not read has the stored shape and no dtype.
  GgufTensorPlan(std::vector<GgufSource> sources, const GgufSizes& sizes, const std::string& path);

  const GgufTensor& first() const noexcept { return *sources_[0].tensor; }
  const GgufTensor* unread() const noexcept;  // one whose type is not read; null: none
  DType dtype() const noexcept { return dtype_; }
  const Shape& shape() const noexcept { return shape_; }
  int64_t size_bytes() const { return dtype_bytes(dtype_, shape_.count()); }
  // Where it lies in the first source, in bytes, if it is there as it is.
  std::optional<int64_t> offset() const noexcept { return offset_; }
  // Which of our columns each stored one is (TensorView::column_order); empty: all in order.
  const std::vector<int32_t>& column_order() const noexcept { return column_order_; }
  // Into size_bytes() bytes, aligned to the dtype's element; on the threads of the pool, where there is one.
  void assemble(const GgufFile& file, std::byte* out, ThreadPool* pool = nullptr) const;

 private:
  struct Part;  // what one source gives
  Part part_of(const GgufSource& source) const;
  void check(const Part& part) const;
  void set_shape(const std::vector<Part>& parts);
  void set_place(const std::vector<Part>& parts);
  int64_t stored_row(const Part& part, int64_t row) const;
  int64_t stored_column(int64_t column) const;
  void copy_rows(const Part& part, const std::byte* data, std::byte* out, ThreadPool* pool) const;
  void convert_rows(const Part& part, const std::byte* data, float* out, ThreadPool* pool) const;
  void turn(const Part& part, const std::byte* data, float* out, ThreadPool* pool) const;
  void join_latent(const std::vector<Part>& parts, const GgufFile& file, float* out, ThreadPool* pool) const;
  [[noreturn]] void refuse(const GgufTensor& tensor, const std::string& problem) const;

  std::vector<GgufSource> sources_;
  GgufSizes sizes_;
  std::string path_;
  DType dtype_ = DType::kFloat32;
  Shape shape_;
  std::optional<int64_t> offset_;
  std::vector<int32_t> column_order_;
};

}  // namespace coluber
