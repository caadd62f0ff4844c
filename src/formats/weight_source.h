// SPDX-License-Identifier: Apache-2.0
//
// The tensors of a checkpoint by name: one safetensors file, or shards with an index. Views point into the mapped
// files, so a model larger than memory can be opened, and nothing is converted. Thread-safe once opened.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "coluber/model.h"
#include "formats/safetensors.h"

namespace coluber {

class SafetensorsSource final : public WeightSource {
 public:
  // `path`: a folder with model.safetensors or model.safetensors.index.json, a .safetensors file, or an index file.
  // Throws Error(kNotFound) where there are no weights, Error(kInvalidData) where the index and its shards disagree.
  explicit SafetensorsSource(const std::string& path);

  bool contains(std::string_view name) const override;
  TensorView get(std::string_view name) const override;
  TensorView peek(std::string_view name) const override;
  std::vector<std::string> names() const override;  // sorted
  std::string describe() const override;
  void release(const TensorView& view) const noexcept override;

  const std::vector<std::unique_ptr<SafetensorsFile>>& files() const noexcept { return files_; }

 private:
  const SafetensorsFile& file_of(std::string_view name) const;
  void open_sharded(const std::string& index_path);

  std::string path_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::unordered_map<std::string, const SafetensorsFile*> by_name_;
};

std::unique_ptr<WeightSource> open_weights(const std::string& path);

}  // namespace coluber
