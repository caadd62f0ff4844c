// SPDX-License-Identifier: Apache-2.0
//
// A config.json in the making, from the metadata of a GGUF file below its architecture's name and from what tensors it
// has. Sizes are checked here only so far that arithmetic on them is safe; the family that reads the config.json checks
// the rest. Lives while one file is opened; one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "formats/gguf_rules.h"

namespace coluber {

class GgufConfig {
 public:
  // With what every family has: sizes of the embedding, layers, tied or not, special tokens.
  GgufConfig(const GgufFile& file, const char* model_type);

  // Keys are behind the architecture's name. Throws Error(kInvalidData) where a size is missing or none.
  int64_t integer(std::string_view key) const;
  int64_t integer(std::string_view key, int64_t fallback) const;
  std::optional<double> real(std::string_view key) const;
  bool flag(std::string_view key, bool fallback) const;
  bool has(std::string_view key) const { return file_.has(scope_ + std::string(key)); }

  void set(const char* field, Json value) { json_.set(field, std::move(value)); }
  void copy(const char* field, std::string_view key) { set(field, integer(key)); }
  void copy_if_there(const char* field, std::string_view key);
  void copy_real(const char* field, std::string_view key);

  int64_t num_layers() const noexcept { return sizes_.num_layers; }
  const GgufSizes& sizes() const noexcept { return sizes_; }
  bool layer_has(int64_t layer, std::string_view tensor) const;
  bool any_layer_has(std::string_view tensor) const { return first_with(tensor) != nullptr; }
  // Rows of the first layer's that has it, 0 where none has.
  int64_t rows_of(std::string_view tensor) const;
  // For each layer the first kind whose tensor it has.
  struct Kind {
    std::string_view tensor;
    const char* name;
  };
  std::vector<std::string> layer_kinds(std::initializer_list<Kind> kinds) const;
  Json layer_list(std::initializer_list<Kind> kinds) const;

  // Fields that families share.
  void add_attention();  // heads, their width, biases
  void add_mamba2();     // as Mamba-2 hybrids name them
  void add_rope();

  [[noreturn]] void refuse(const std::string& problem) const;
  const GgufFile& file() const noexcept { return file_; }
  std::string text() const { return json_.dump(); }

 private:
  const GgufTensor* first_with(std::string_view tensor) const;
  void add_special_tokens();
  Json factors_of(const char* tensor) const;

  const GgufFile& file_;
  std::string scope_;
  GgufSizes sizes_;
  Json json_;
};

}  // namespace coluber
