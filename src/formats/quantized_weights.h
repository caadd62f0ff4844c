// SPDX-License-Identifier: Apache-2.0
//
// A quantised Hugging Face checkpoint as if it were a plain one: the tensors that a scheme stores for X.weight are
// hidden, and X.weight is there with the shape that layers ask for and a block type (kernels/quant/scaled_types.h).
// Layers and models never learn of schemes. How a weight is stored is seen from the tensors, one by one: modules that
// were left out of quantisation, and several schemes in one checkpoint, need no list of names; what the config states
// is held against what is found. `get` brings a weight into rows of blocks, threaded; the copy is dropped once
// `release` has named all of its rows, and made anew by the next `get`: a checkpoint never lies in memory twice. Owns
// the source below it. `get` runs on the pool: one thread at a time.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/thread_pool.h"
#include "coluber/model.h"
#include "formats/load_buffer.h"
#include "formats/quantized_rows.h"
#include "formats/quantized_tensor.h"

namespace coluber {

class QuantizedWeights final : public WeightSource {
 public:
  // Throws Error(kInvalidData) listing every tensor that does not fit. The pool outlives this.
  QuantizedWeights(std::unique_ptr<WeightSource> stored, const QuantizationConfig& config, ThreadPool& pool);
  ~QuantizedWeights() override;

  bool contains(std::string_view name) const override;
  TensorView get(std::string_view name) const override;
  TensorView peek(std::string_view name) const override;  // of a quantised weight: no data
  std::vector<std::string> names() const override;
  std::string describe() const override { return stored_->describe(); }
  void release(const TensorView& view) const noexcept override;
  const WeightSource& stored() const noexcept override { return *stored_; }

  int64_t num_quantized() const noexcept { return static_cast<int64_t>(weights_.size()); }
  int64_t made_bytes() const noexcept;  // of rows that `get` made and `release` has not dropped

 private:
  struct Weight;
  void add(std::unique_ptr<QuantizedTensor> tensor);
  Weight* owner_of(const std::byte* data) const noexcept;

  std::unique_ptr<WeightSource> stored_;
  ThreadPool& pool_;
  std::map<std::string, std::unique_ptr<Weight>, std::less<>> weights_;
  std::map<std::string, bool, std::less<>> hidden_;   // names of parts
  mutable std::map<const std::byte*, Weight*> made_;  // by where their rows begin
  mutable SpareBuffer spare_;
};

}  // namespace coluber
