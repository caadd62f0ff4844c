// SPDX-License-Identifier: Apache-2.0
//
// What the families' rows (gguf_families.h) work with: the fields of a config.json under any of their names, which
// tensors there are, and the metadata in the making. Problems are gathered and told in one message. Lives while one
// export is planned; one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "formats/gguf_writer.h"

namespace coluber {

using FieldNames = std::initializer_list<std::string_view>;

class GgufExportFields {
 public:
  // `has_tensor`: whether the checkpoint has what is stored under this whole name ("blk.0.attn_q.weight"), `shape_of`
  // what shape that has.
  GgufExportFields(const Json& config, std::string path,
                   std::function<std::optional<Shape>(std::string_view)> shape_of);

  // --- of the config: the first name that is there and not null; those of a text_config come first
  bool has(FieldNames names) const { return find(names) != nullptr; }
  const Json* find(FieldNames names) const;
  int64_t integer(FieldNames names) const;  // a problem where it is missing
  int64_t integer(FieldNames names, int64_t fallback) const;
  double real(FieldNames names, double fallback) const;
  bool flag(FieldNames names, bool fallback) const;
  std::string text(FieldNames names, std::string_view fallback) const;
  std::vector<double> reals(FieldNames names) const;
  const Json& rope() const noexcept { return rope_; }  // rope_parameters, with rope_theta and what else stands apart
  double rope_real(std::string_view name, double fallback) const;

  // --- of the tensors
  int64_t num_layers() const noexcept { return num_layers_; }
  bool layer_has(int64_t layer, std::string_view stored) const;
  bool any_layer_has(std::string_view stored) const;
  std::optional<Shape> first_shape(std::string_view stored) const;  // of the first layer that has it
  int64_t rows_of(std::string_view stored) const;                   // 0 where no layer has it

  // --- of the metadata, behind the architecture's name
  void set_architecture(std::string_view name);
  void put(std::string_view key, int64_t value);
  void put_real(std::string_view key, double value);
  void put_flag(std::string_view key, bool value);
  void put_text(std::string_view key, std::string_view value);
  void put_list(std::string_view key, const std::vector<int64_t>& values);
  void put_flags(std::string_view key, std::vector<bool> values);
  // `value` in the layers that have the tensor, 0 in the others.
  void put_per_layer(std::string_view key, std::string_view stored, int64_t value);
  // Frequencies and their scaling; where the config does not say otherwise, `part` of a head turns, by `base`.
  void put_rope(int64_t head_dim, double part = 1.0, double base = 10000.0);
  int64_t number(std::string_view key) const;  // that was put as a number, or the largest of a list; 0 where none was

  // A condition under which the format can say what the config says.
  void require(bool holds, const std::string& problem);
  // The field is missing or has this value.
  void require_text(FieldNames names, std::string_view value);
  void require_flag(FieldNames names, bool value, bool fallback);
  void require_free_time_steps();  // time_step_limit is missing or no limit
  // What the user should know of the file; told once.
  void note(const std::string& text);
  std::vector<std::string> take_notes() { return std::move(notes_); }
  void finish() const;  // throws Error(kUnsupported) with all problems
  GgufMetadata take() { return std::move(metadata_); }

 private:
  std::string full(std::string_view key) const { return architecture_ + "." + std::string(key); }

  Json config_, rope_;
  std::string path_, architecture_;
  std::function<std::optional<Shape>(std::string_view)> shape_of_;
  int64_t num_layers_ = 0;
  GgufMetadata metadata_;
  mutable std::vector<std::string> problems_;
  std::vector<std::string> notes_;
};

}  // namespace coluber
