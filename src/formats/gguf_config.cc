// SPDX-License-Identifier: Apache-2.0
#include "formats/gguf_config.h"

#include <algorithm>

#include "base/dtype.h"
#include "base/error.h"

namespace coluber {
namespace {

constexpr int64_t kMostSize = int64_t{1} << 31;
constexpr int64_t kMostOfSizes = 1 << 24;  // so that a product of two is one
constexpr int64_t kMostLayers = 1 << 16;
constexpr int64_t kMostFactors = 1 << 16;

int64_t largest(const std::vector<int64_t>& values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

std::string scope_of(const GgufFile& file) { return std::string(file.text("general.architecture").value_or("")) + "."; }

// A number, or the largest of a number a layer.
int64_t number_or_largest(const GgufFile& file, const std::string& key) {
  if (!file.has(key)) return 0;
  const int64_t value = file.is_list(key) ? largest(*file.integers(key)) : *file.integer(key);
  if (value < 0 || value > kMostOfSizes)
    throw make_error(ErrorCode::kInvalidData, "{}: the metadata '{}' is {}; expected 0 to {}", file.path(), key, value,
                     kMostOfSizes);
  return value;
}

}  // namespace

GgufSizes gguf_sizes(const GgufFile& file) {
  const std::string scope = scope_of(file);
  const auto number = [&](const char* key) { return number_or_largest(file, scope + key); };
  GgufSizes sizes;
  const int64_t blocks = number("block_count"), further = number("nextn_predict_layers");
  if (blocks > kMostLayers || further > blocks)
    throw make_error(ErrorCode::kInvalidData,
                     "{}: the metadata '{}block_count' is {}; expected at most {}, and at least the {} of "
                     "nextn_predict_layers",
                     file.path(), scope, blocks, kMostLayers, further);
  sizes.num_layers = blocks - further;
  if (sizes.num_layers > static_cast<int64_t>(file.tensors().size()))
    throw make_error(ErrorCode::kInvalidData,
                     "{}: the metadata '{}block_count' is {}, and the file has {} tensors (an incomplete file?)",
                     file.path(), scope, blocks, file.tensors().size());
  sizes.num_heads = number("attention.head_count");
  sizes.num_kv_heads = number("attention.head_count_kv");
  sizes.num_k_heads = number("ssm.group_count");
  sizes.num_v_heads = number("ssm.time_step_rank");
  sizes.head_k_dim = number("ssm.state_size");
  sizes.head_v_dim = sizes.num_v_heads > 0 ? number("ssm.inner_size") / sizes.num_v_heads : 0;
  sizes.rescale_every = number("rescale_every_n_layers");
  return sizes;
}

GgufConfig::GgufConfig(const GgufFile& file, const char* model_type)
    : file_(file), scope_(scope_of(file)), sizes_(gguf_sizes(file)) {
  json_.set("model_type", model_type);
  const GgufTensor* embedding = file.find("token_embd.weight");
  if (embedding == nullptr || embedding->shape.rank() != 2) refuse("expected a matrix token_embd.weight, found none");
  json_.set("vocab_size", embedding->shape[0]);
  json_.set("tie_word_embeddings", file.find("output.weight") == nullptr);
  copy("hidden_size", "embedding_length");
  integer("block_count");
  json_.set("num_hidden_layers", sizes_.num_layers);
  add_special_tokens();
}

// A generation ends with the end of the text, of a turn and of a message.
void GgufConfig::add_special_tokens() {
  Json::Array ends;
  for (const char* which : {"eos", "eot", "eom"}) {
    const auto id = file_.integer(fmt::format("tokenizer.ggml.{}_token_id", which));
    if (id && std::find(ends.begin(), ends.end(), Json(*id)) == ends.end()) ends.emplace_back(*id);
  }
  if (ends.size() == 1) {
    json_.set("eos_token_id", ends[0]);
  } else if (!ends.empty()) {
    json_.set("eos_token_id", std::move(ends));
  }
  if (const auto id = file_.integer("tokenizer.ggml.bos_token_id")) json_.set("bos_token_id", *id);
  if (const auto id = file_.integer("tokenizer.ggml.padding_token_id")) json_.set("pad_token_id", *id);
}

void GgufConfig::refuse(const std::string& problem) const {
  throw make_error(ErrorCode::kInvalidData, "{}: {}", file_.path(), problem);
}

int64_t GgufConfig::integer(std::string_view key) const {
  const auto value = file_.integer(scope_ + std::string(key));
  if (value && *value >= 0 && *value <= kMostSize) return *value;
  refuse(fmt::format("the metadata '{}{}' is {}; expected a size from 0 to {}", scope_, key,
                     value ? std::to_string(*value) : "missing", kMostSize));
}

int64_t GgufConfig::integer(std::string_view key, int64_t fallback) const { return has(key) ? integer(key) : fallback; }

std::optional<double> GgufConfig::real(std::string_view key) const { return file_.real(scope_ + std::string(key)); }

bool GgufConfig::flag(std::string_view key, bool fallback) const {
  return file_.boolean(scope_ + std::string(key)).value_or(fallback);
}

void GgufConfig::copy_if_there(const char* field, std::string_view key) {
  if (has(key)) copy(field, key);
}
void GgufConfig::copy_real(const char* field, std::string_view key) {
  if (const auto value = real(key)) set(field, *value);
}

bool GgufConfig::layer_has(int64_t layer, std::string_view tensor) const {
  return file_.find(fmt::format("blk.{}.{}", layer, tensor)) != nullptr;
}

const GgufTensor* GgufConfig::first_with(std::string_view tensor) const {
  for (int64_t i = 0; i < num_layers(); ++i)
    if (const GgufTensor* found = file_.find(fmt::format("blk.{}.{}", i, tensor))) return found;
  return nullptr;
}

int64_t GgufConfig::rows_of(std::string_view tensor) const {
  const GgufTensor* found = first_with(tensor);
  return found == nullptr || found->shape.rank() != 2 ? 0 : found->shape[0];
}

std::vector<std::string> GgufConfig::layer_kinds(std::initializer_list<Kind> kinds) const {
  std::vector<std::string> result;
  for (int64_t i = 0; i < num_layers(); ++i) {
    const auto kind = std::find_if(kinds.begin(), kinds.end(), [&](const Kind& k) { return layer_has(i, k.tensor); });
    if (kind == kinds.end()) {
      std::string names;
      for (const Kind& k : kinds) names += fmt::format("{}blk.{}.{}", names.empty() ? "" : ", ", i, k.tensor);
      refuse(fmt::format("layer {} has none of {}, which tell its kind (an incomplete file?)", i, names));
    }
    result.emplace_back(kind->name);
  }
  return result;
}

Json GgufConfig::layer_list(std::initializer_list<Kind> kinds) const {
  Json::Array list;
  for (std::string& kind : layer_kinds(kinds)) list.emplace_back(std::move(kind));
  return list;
}

void GgufConfig::add_attention() {
  set("num_attention_heads", sizes_.num_heads);
  set("num_key_value_heads", std::max<int64_t>(sizes_.num_kv_heads, 1));
  copy_if_there("head_dim", "attention.key_length");
  if (integer("attention.value_length", 0) != integer("attention.key_length", 0))
    refuse(
        fmt::format("the metadata '{0}attention.value_length' is not '{0}attention.key_length'; expected heads of "
                    "one width",
                    scope_));
  set("attention_bias", any_layer_has("attn_q.bias"));
  copy_if_there("max_position_embeddings", "context_length");
}

void GgufConfig::add_mamba2() {
  const int64_t heads = sizes_.num_v_heads, hidden = std::max<int64_t>(integer("embedding_length"), 1);
  set("mamba_n_heads", heads);
  set("mamba_d_head", sizes_.head_v_dim);
  set("mamba_expand", integer("ssm.inner_size") / hidden);
  copy("mamba_n_groups", "ssm.group_count");
  copy_if_there("gated_norm_groups", "ssm.norm_group_count");
  copy("mamba_d_state", "ssm.state_size");
  copy("mamba_d_conv", "ssm.conv_kernel");
  set("mamba_conv_bias", any_layer_has("ssm_conv1d.bias"));
  set("mamba_proj_bias", any_layer_has("ssm_in.bias"));
}

// Divisors of the frequencies, which llama.cpp keeps as a tensor.
Json GgufConfig::factors_of(const char* tensor) const {
  const GgufTensor* found = file_.find(tensor);
  if (found == nullptr) return {};
  if (!found->dtype || found->shape.count() > kMostFactors)
    refuse(fmt::format("expected at most {} floats in {}", kMostFactors, tensor));
  std::vector<float> values(static_cast<size_t>(found->shape.count()));
  convert_to_float(file_.data_of(*found), *found->dtype, found->shape.count(), values.data());
  Json::Array list;
  for (const float value : values) list.emplace_back(static_cast<double>(value));
  return list;
}

void GgufConfig::add_rope() {
  Json rope{Json::Object{}};
  const std::string type(file_.text(scope_ + "rope.scaling.type").value_or("none"));
  const auto add = [&](const char* field, const char* key) {
    if (const auto value = real(key)) rope.set(field, *value);
  };
  add("rope_theta", "rope.freq_base");
  if (const Json factors = factors_of("rope_freqs.weight"); !factors.is_null()) {
    rope.set("rope_type", "longrope");
    rope.set("short_factor", factors);
    rope.set("long_factor", factors);
    rope.set("attention_factor", 1.0);
  } else if (type == "linear" || type == "yarn") {
    rope.set("rope_type", type);
    add("factor", "rope.scaling.factor");
    add("attention_factor", "rope.scaling.yarn_attn_factor");
    add("beta_fast", "rope.scaling.yarn_beta_fast");
    add("beta_slow", "rope.scaling.yarn_beta_slow");
  } else if (type == "longrope") {
    rope.set("rope_type", type);
    rope.set("short_factor", factors_of("rope_factors_short.weight"));
    rope.set("long_factor", factors_of("rope_factors_long.weight"));
    add("attention_factor", "rope.scaling.attn_factor");
  } else if (type != "none") {
    refuse(fmt::format("the metadata '{}rope.scaling.type' is '{}'; expected none, linear, yarn or longrope", scope_,
                       type.substr(0, 80)));
  }
  if (has("rope.scaling.original_context_length"))
    rope.set("original_max_position_embeddings", integer("rope.scaling.original_context_length"));
  set("rope_parameters", std::move(rope));
  copy_if_there("rotary_dim", "rope.dimension_count");
}

}  // namespace coluber
