// SPDX-License-Identifier: Apache-2.0
#include "formats/gguf_export_fields.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "formats/hf_config.h"

namespace coluber {
namespace {

constexpr int64_t kMostLayers = 1 << 16;
constexpr int64_t kMostSize = UINT32_MAX;

std::string list_of(FieldNames names) {
  std::string text;
  for (const std::string_view name : names) text += (text.empty() ? "" : " or ") + std::string(name);
  return text;
}

// The nested text part over the whole.
Json flattened(const Json& config) {
  Json flat = config.is_object() ? config : Json(Json::Object{});
  if (const Json* text = config.find("text_config"); text != nullptr && text->is_object())
    for (const auto& [key, value] : text->as_object()) flat.set(key, value);
  return flat;
}

Json rope_of(const Json& config) {
  Json rope{Json::Object{}};
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const Json* found = config.find(key);
    if (found == nullptr || !found->is_object()) continue;
    for (const auto& [name, value] : found->as_object()) rope.set(name == "type" ? "rope_type" : name, value);
  }
  for (const char* key : {"rope_theta", "partial_rotary_factor", "original_max_position_embeddings"}) {
    const Json* found = config.find(key);
    if (found != nullptr && !found->is_null() && rope.find(key) == nullptr) rope.set(key, *found);
  }
  return rope;
}

}  // namespace

GgufExportFields::GgufExportFields(const Json& config, std::string path,
                                   std::function<std::optional<Shape>(std::string_view)> shape_of)
    : config_(flattened(config)), rope_(rope_of(config_)), path_(std::move(path)), shape_of_(std::move(shape_of)) {
  // Lists of layers are believed first, as the families do.
  for (const char* list :
       {"layers_block_type", "hybrid_override_pattern", "num_hidden_layers", "n_layer", "num_layers", "layer_types"}) {
    const Json* found = config_.find(list);
    if (num_layers_ != 0 || found == nullptr) continue;
    if (found->is_array()) num_layers_ = static_cast<int64_t>(found->as_array().size());
    if (found->is_string()) num_layers_ = static_cast<int64_t>(found->as_string().size());
    if (found->is_int()) num_layers_ = found->as_int();
  }
  if (num_layers_ < 1 || num_layers_ > kMostLayers)
    throw make_error(ErrorCode::kInvalidConfig, "{}: expected num_hidden_layers from 1 to {}, found {}", path_,
                     kMostLayers, num_layers_);
}

const Json* GgufExportFields::find(FieldNames names) const {
  for (const std::string_view name : names)
    if (const Json* found = config_.find(name); found != nullptr && !found->is_null()) return found;
  return nullptr;
}

int64_t GgufExportFields::integer(FieldNames names) const {
  if (!has(names)) problems_.push_back(list_of(names) + " is missing");
  return integer(names, 1);
}

int64_t GgufExportFields::integer(FieldNames names, int64_t fallback) const {
  const Json* found = find(names);
  if (found == nullptr) return fallback;
  if (found->is_int()) return found->as_int();
  problems_.push_back(fmt::format("{} is {}; expected an integer", list_of(names), found->dump()));
  return fallback;
}

double GgufExportFields::real(FieldNames names, double fallback) const {
  const Json* found = find(names);
  if (found == nullptr) return fallback;
  if (const std::optional<double> number = number_of(*found)) return *number;
  problems_.push_back(fmt::format("{} is {}; expected a number", list_of(names), found->dump()));
  return fallback;
}

bool GgufExportFields::flag(FieldNames names, bool fallback) const {
  const Json* found = find(names);
  return found != nullptr && found->is_bool() ? found->as_bool() : fallback;
}

std::string GgufExportFields::text(FieldNames names, std::string_view fallback) const {
  const Json* found = find(names);
  return found != nullptr && found->is_string() ? found->as_string() : std::string(fallback);
}

std::vector<double> GgufExportFields::reals(FieldNames names) const {
  std::vector<double> values;
  const Json* found = find(names);
  if (found == nullptr || !found->is_array()) return values;
  for (const Json& value : found->as_array()) values.push_back(number_of(value).value_or(0));
  return values;
}

double GgufExportFields::rope_real(std::string_view name, double fallback) const {
  const Json* found = rope_.find(name);
  return found == nullptr ? fallback : number_of(*found).value_or(fallback);
}

bool GgufExportFields::layer_has(int64_t layer, std::string_view stored) const {
  return shape_of_(fmt::format("blk.{}.{}", layer, stored)).has_value();
}

bool GgufExportFields::any_layer_has(std::string_view stored) const { return first_shape(stored).has_value(); }

std::optional<Shape> GgufExportFields::first_shape(std::string_view stored) const {
  for (int64_t layer = 0; layer < num_layers_; ++layer)
    if (auto shape = shape_of_(fmt::format("blk.{}.{}", layer, stored))) return shape;
  return std::nullopt;
}

int64_t GgufExportFields::rows_of(std::string_view stored) const {
  const std::optional<Shape> shape = first_shape(stored);
  return !shape || shape->rank() < 2 ? 0 : (*shape)[shape->rank() - 2];
}

void GgufExportFields::set_architecture(std::string_view name) {
  architecture_ = name;
  metadata_.emplace_back("general.architecture", architecture_);
}

void GgufExportFields::put(std::string_view key, int64_t value) {
  if (value < 0 || value > kMostSize)
    problems_.push_back(fmt::format("{} would be {}; expected 0 to {}", full(key), value, kMostSize));
  metadata_.emplace_back(full(key), static_cast<uint32_t>(value));
}
void GgufExportFields::put_real(std::string_view key, double value) {
  metadata_.emplace_back(full(key), static_cast<float>(value));
}
void GgufExportFields::put_flag(std::string_view key, bool value) { metadata_.emplace_back(full(key), value); }
void GgufExportFields::put_text(std::string_view key, std::string_view value) {
  metadata_.emplace_back(full(key), std::string(value));
}
void GgufExportFields::put_list(std::string_view key, const std::vector<int64_t>& values) {
  std::vector<int32_t> list;
  for (const int64_t value : values) list.push_back(static_cast<int32_t>(value));
  metadata_.emplace_back(full(key), std::move(list));
}
void GgufExportFields::put_flags(std::string_view key, std::vector<bool> values) {
  metadata_.emplace_back(full(key), std::move(values));
}

void GgufExportFields::put_per_layer(std::string_view key, std::string_view stored, int64_t value) {
  std::vector<int64_t> values;
  for (int64_t layer = 0; layer < num_layers_; ++layer) values.push_back(layer_has(layer, stored) ? value : 0);
  put_list(key, values);
}

// "default" turns by the base alone; kinds that change with a sequence's length have no word in the format.
void GgufExportFields::put_rope(int64_t head_dim, double part, double base) {
  const Json* kind = rope_.find("rope_type");
  const std::string type = kind != nullptr && kind->is_string() ? kind->as_string() : "default";
  put_real("rope.freq_base", rope_real("rope_theta", base));
  const double turning = static_cast<double>(head_dim) * rope_real("partial_rotary_factor", part);
  put("rope.dimension_count", integer({"rotary_dim", "attn_rotary_emb"}, static_cast<int64_t>(turning)));
  if (type == "default") return;
  require(type == "linear" || type == "yarn", fmt::format("rope_type {} cannot be written", type));
  put_text("rope.scaling.type", type);
  put_real("rope.scaling.factor", rope_real("factor", 1.0));
  if (type != "yarn") return;
  for (const char* field : {"mscale", "mscale_all_dim"})
    require(rope_real(field, 0) == 0, fmt::format("{} of yarn cannot be written", field));
  const Json* truncate = rope_.find("truncate");
  require(truncate == nullptr || !truncate->is_bool() || truncate->as_bool(),
          "yarn without truncate cannot be written");
  if (rope_.find("original_max_position_embeddings") != nullptr)
    put("rope.scaling.original_context_length", std::llround(rope_real("original_max_position_embeddings", 0)));
  for (const auto& [field, key] :
       {std::pair("attention_factor", "rope.scaling.yarn_attn_factor"),
        std::pair("beta_fast", "rope.scaling.yarn_beta_fast"), std::pair("beta_slow", "rope.scaling.yarn_beta_slow")})
    if (rope_.find(field) != nullptr) put_real(key, rope_real(field, 0));
}

int64_t GgufExportFields::number(std::string_view key) const {
  for (const auto& [name, value] : metadata_) {
    if (name != full(key)) continue;
    if (const auto* one = std::get_if<uint32_t>(&value)) return *one;
    const auto* list = std::get_if<std::vector<int32_t>>(&value);
    return list == nullptr || list->empty() ? 0 : *std::max_element(list->begin(), list->end());
  }
  return 0;
}

void GgufExportFields::require(bool holds, const std::string& problem) {
  if (!holds) problems_.push_back(problem);
}

void GgufExportFields::require_text(FieldNames names, std::string_view value) {
  const std::string found = text(names, value);
  require(found == value, fmt::format("{} is {}; expected {}", list_of(names), found, value));
}

void GgufExportFields::require_flag(FieldNames names, bool value, bool fallback) {
  require(flag(names, fallback) == value, fmt::format("{} must be {}", list_of(names), value));
}

void GgufExportFields::require_free_time_steps() {
  const std::vector<double> limit = reals({"time_step_limit"});
  require(limit.size() != 2 || (limit[0] <= 0 && std::isinf(limit[1])), "time_step_limit other than 0 to infinity");
}

void GgufExportFields::note(const std::string& text) {
  if (std::find(notes_.begin(), notes_.end(), text) == notes_.end()) notes_.push_back(text);
}

void GgufExportFields::finish() const {
  if (problems_.empty()) return;
  std::string all;
  for (const std::string& problem : problems_) all += (all.empty() ? "" : "; ") + problem;
  throw make_error(ErrorCode::kUnsupported, "{}: a GGUF file of {} cannot say this: {}", path_,
                   architecture_.empty() ? "this model" : architecture_, all);
}

}  // namespace coluber
