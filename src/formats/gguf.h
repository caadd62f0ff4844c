// SPDX-License-Identifier: Apache-2.0
//
// A GGUF model as Hugging Face would have published it: a config.json made from its metadata, and its tensors under
// Hugging Face's names with the converter's transforms undone. Quantised tensors stay as they are (their dtype is a
// block type). Architectures are rows of the tables in gguf_rules.h. Tensors that cannot be used where they lie are put
// together when asked for, and given back once every taker has released them. Thread-safe once opened.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "coluber/model.h"
#include "formats/gguf_file.h"
#include "formats/gguf_rules.h"
#include "formats/gguf_tensor.h"
#include "formats/load_buffer.h"

namespace coluber {

class GgufWeights final : public WeightSource {
 public:
  // `pool`: whose threads put tensors together that are not stored as they are, while nobody else uses it; null: the
  // caller's alone.
  explicit GgufWeights(const std::string& path, ThreadPool* pool = nullptr);

  std::string config_json() const { return architecture_->config(file_); }
  const GgufFile& file() const noexcept { return file_; }

  bool contains(std::string_view name) const override { return plans_.find(name) != plans_.end(); }
  TensorView get(std::string_view name) const override;
  TensorView peek(std::string_view name) const override;
  std::vector<std::string> names() const override;
  std::string describe() const override { return file_.path(); }
  void release(const TensorView& view) const noexcept override;

 private:
  struct Assembled {
    LoadBuffer data;
    int64_t takers = 0;
  };
  using Sources = std::map<std::string, std::vector<GgufSource>, std::less<>>;
  void add(const GgufTensor& tensor, Sources& sources) const;
  void add_by_rules(const GgufTensor& tensor, std::string_view stored, std::string_view layer, Sources& sources) const;
  void check_sources(const std::string& name, const std::vector<GgufSource>& sources) const;
  const GgufTensorPlan& plan_of(std::string_view name) const;

  GgufFile file_;
  const GgufArchitecture* architecture_;
  GgufSizes sizes_;
  ThreadPool* pool_;
  std::map<std::string, GgufTensorPlan, std::less<>> plans_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, Assembled, std::less<>> assembled_;
  mutable SpareBuffer spare_;
};

bool is_gguf_file(std::string_view name) noexcept;
// The same without the later files of a split model.
bool is_first_gguf_file(std::string_view name) noexcept;

}  // namespace coluber
