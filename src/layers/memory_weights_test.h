// SPDX-License-Identifier: Apache-2.0
//
// Weights in memory and the rest of a load context, for tests of layers. Not thread-safe.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "coluber/registry.h"
#include "tensor/workspace.h"

namespace coluber {

class MemoryWeights : public WeightSource {
 public:
  // Stores the values as `dtype`, rounded.
  void add(const std::string& name, const Shape& shape, const std::vector<float>& values,
           DType dtype = DType::kFloat32) {
    add_raw(name, shape, dtype, dtype_bytes(dtype, shape.count()));
    convert_from_float(values.data(), shape.count(), dtype, tensors_[name].data);
  }
  void add_raw(const std::string& name, const Shape& shape, DType dtype, int64_t bytes) {
    memory_.emplace_back(static_cast<size_t>(bytes));
    tensors_[name] = TensorView::contiguous(memory_.back().data(), dtype, shape);
  }

  bool contains(std::string_view name) const override { return tensors_.count(std::string(name)) > 0; }
  TensorView get(std::string_view name) const override {
    const auto found = tensors_.find(std::string(name));
    if (found == tensors_.end()) throw make_error(ErrorCode::kNotFound, "no tensor '{}'", name);
    return found->second;
  }
  std::vector<std::string> names() const override {
    std::vector<std::string> names;
    for (const auto& entry : tensors_) names.push_back(entry.first);
    return names;
  }
  std::string describe() const override { return "test weights"; }

 private:
  std::deque<std::vector<std::byte>> memory_;
  std::map<std::string, TensorView> tensors_;
};

class LoadHarness {
 public:
  explicit LoadHarness(const WeightSource& weights)
      : context_{config_json_, "config.json", weights, config_, pool_, {}, false} {}
  ModelLoadContext& context() { return context_; }
  EngineConfig& config() { return config_; }
  // A batch that has what layers without a cache need.
  ForwardBatch batch(std::span<const int32_t> token_ids) {
    ForwardBatch batch;
    batch.token_ids = token_ids;
    batch.thread_pool = &pool_;
    batch.workspace = &workspace_;
    return batch;
  }

 private:
  std::string config_json_ = "{}";
  EngineConfig config_;
  ThreadPool pool_{2};
  Workspace workspace_;
  ModelLoadContext context_;
};

}  // namespace coluber
