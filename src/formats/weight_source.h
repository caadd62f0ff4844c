// SPDX-License-Identifier: Apache-2.0
//
// The tensors of a checkpoint by name: one file (safetensors, or what torch.save writes), or shards with an index.
// Views point into the mapped files, so a model larger than memory can be opened, and nothing is converted. Thread-safe
// once opened.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "coluber/model.h"
#include "formats/tensor_file.h"

namespace coluber {

class FileWeights final : public WeightSource {
 public:
  // `path`: a folder with model.safetensors, pytorch_model.bin, the index of shards of either, or a single .pth or .pt
  // file; or one of these files. Throws Error(kNotFound) where there are no weights, Error(kInvalidData) where an index
  // and its shards disagree.
  explicit FileWeights(const std::string& path);

  bool contains(std::string_view name) const override;
  TensorView get(std::string_view name) const override;
  TensorView peek(std::string_view name) const override;
  std::vector<std::string> names() const override;  // sorted
  std::string describe() const override;
  void release(const TensorView& view) const noexcept override;

  const std::vector<std::unique_ptr<TensorFile>>& files() const noexcept { return files_; }

 private:
  const TensorFile& file_of(std::string_view name) const;
  void open_sharded(const std::string& index_path);

  std::string path_;
  std::vector<std::unique_ptr<TensorFile>> files_;
  std::unordered_map<std::string, const TensorFile*> by_name_;
};

std::unique_ptr<WeightSource> open_weights(const std::string& path);

// The files that hold weights, as help and messages name them.
inline constexpr std::string_view kWeightsFiles = ".safetensors, .bin, .pth, .gguf";
// Whether a file of this name is of a format that holds weights, or the index of such files.
bool is_weights_file(std::string_view name) noexcept;
// The file in a folder that its weights are read from; none where it has no weights, or several and nothing says which.
std::optional<std::string> find_weights(const std::string& folder);
// The GGUF file that `path`, a file or a folder, names as its weights; empty where these are of another format.
std::string gguf_file_of(const std::string& path);

}  // namespace coluber
