// SPDX-License-Identifier: Apache-2.0
//
// A GGUF model as Hugging Face would have published it: a config.json made from its metadata, and its tensors under
// Hugging Face's names with the converter's transforms undone. Quantised tensors stay as they are (their dtype is a
// block type). Architectures are rows of a table in gguf_architectures.cc. Thread-safe once opened.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "coluber/model.h"
#include "formats/gguf_file.h"

namespace coluber {

// How a stored tensor becomes the one that layers ask for.
enum class GgufTransform {
  kNone,
  kConv,       // [C, W] to [C, 1, W]
  kFlat,       // to one dimension
  kLogOfMinus  // log(-x): A_log of a stored A = -exp(A_log), in float32
};

struct GgufTensorRule {
  std::string_view stored;  // behind "blk.N.", or a whole name
  std::string_view name;    // behind the layer's prefix, or a whole name
  GgufTransform transform = GgufTransform::kNone;
};

struct GgufArchitecture {
  std::string_view name;          // general.architecture
  std::string_view layer_prefix;  // "model.layers."
  std::vector<GgufTensorRule> whole, layer;
  std::string (*config)(const GgufFile& file);  // text of config.json
};

// Throws Error(kUnsupported) naming the known ones.
const GgufArchitecture& gguf_architecture(const GgufFile& file);

class GgufWeights final : public WeightSource {
 public:
  explicit GgufWeights(const std::string& path);

  std::string config_json() const { return architecture_->config(file_); }
  const GgufFile& file() const noexcept { return file_; }

  bool contains(std::string_view name) const override { return entries_.find(name) != entries_.end(); }
  TensorView get(std::string_view name) const override;
  TensorView peek(std::string_view name) const override;
  std::vector<std::string> names() const override;
  std::string describe() const override { return file_.path(); }
  void release(const TensorView& view) const noexcept override;

 private:
  struct Entry {
    const GgufTensor* tensor;
    GgufTransform transform;
    Shape shape;
  };
  void add(const GgufTensor& tensor);
  const Entry& entry_of(std::string_view name) const;

  GgufFile file_;
  const GgufArchitecture* architecture_;
  std::map<std::string, Entry, std::less<>> entries_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, std::vector<float>, std::less<>> computed_;
};

bool is_gguf_file(std::string_view name) noexcept;
// The same without the later files of a split model.
bool is_first_gguf_file(std::string_view name) noexcept;

}  // namespace coluber
