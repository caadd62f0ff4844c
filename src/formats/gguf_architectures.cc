// SPDX-License-Identifier: Apache-2.0
// What llama.cpp's converter calls the metadata and the tensors of each architecture, and what it does to their values.
#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "formats/gguf.h"

namespace coluber {
namespace {

using T = GgufTransform;

// A config.json in the making, from metadata below the architecture's name.
class Config {
 public:
  Config(const GgufFile& file, const char* model_type) : file_(file), scope_(*file.text("general.architecture")) {
    scope_ += ".";
    json_.set("model_type", model_type);
    const GgufTensor* embedding = file.find("token_embd.weight");
    if (embedding == nullptr || embedding->shape.rank() != 2)
      throw make_error(ErrorCode::kInvalidData, "{}: expected a matrix token_embd.weight, found none", file.path());
    json_.set("vocab_size", embedding->shape[0]);
    json_.set("tie_word_embeddings", file.find("output.weight") == nullptr);
    copy("hidden_size", "embedding_length");
    copy("num_hidden_layers", "block_count");
    for (const char* which : {"bos", "eos", "pad"})
      if (const auto id = file.integer(fmt::format("tokenizer.ggml.{}_token_id", which)))
        json_.set(fmt::format("{}_token_id", which), *id);
  }

  int64_t integer(std::string_view key) const {
    if (const auto value = file_.integer(scope_ + std::string(key)); value && *value >= 0) return *value;
    throw make_error(ErrorCode::kInvalidData, "{}: the metadata '{}{}' is missing or negative; expected a size",
                     file_.path(), scope_, key);
  }
  void copy(const char* field, std::string_view key) { json_.set(field, integer(key)); }
  void copy_real(const char* field, std::string_view key) {
    if (const auto value = file_.real(scope_ + std::string(key))) json_.set(field, *value);
  }
  bool has(std::string_view key) const { return file_.has(scope_ + std::string(key)); }
  void set(const char* field, Json value) { json_.set(field, std::move(value)); }
  const GgufFile& file() const { return file_; }
  const std::string& scope() const { return scope_; }
  std::string text() const { return json_.dump(); }

 private:
  const GgufFile& file_;
  std::string scope_;
  Json json_;
};

void add_mamba_fields(Config& config) {
  config.copy("state_size", "ssm.state_size");
  config.copy("conv_kernel", "ssm.conv_kernel");
  config.set("expand", config.integer("ssm.inner_size") / std::max<int64_t>(config.integer("embedding_length"), 1));
  config.copy_real("layer_norm_epsilon", "attention.layer_norm_rms_epsilon");
  config.set("use_conv_bias", config.file().find("blk.0.ssm_conv1d.bias") != nullptr);
  config.set("use_bias", config.file().find("blk.0.ssm_in.bias") != nullptr);
}

std::string mamba_config(const GgufFile& file) {
  const bool falcon = file.boolean("mamba.ssm.dt_b_c_rms").value_or(false);
  Config config(file, falcon ? "falcon_mamba" : "mamba");
  add_mamba_fields(config);
  config.copy("intermediate_size", "ssm.inner_size");
  config.copy("time_step_rank", "ssm.time_step_rank");
  return config.text();
}

std::string mamba2_config(const GgufFile& file) {
  Config config(file, "mamba2");
  add_mamba_fields(config);
  const int64_t heads = config.integer("ssm.time_step_rank");
  config.set("num_heads", heads);
  config.set("head_dim", config.integer("ssm.inner_size") / std::max<int64_t>(heads, 1));
  config.copy("n_groups", "ssm.group_count");
  return config.text();
}

std::string lfm2_config(const GgufFile& file) {
  Config config(file, "lfm2");
  config.copy("num_attention_heads", "attention.head_count");
  config.copy("intermediate_size", "feed_forward_length");
  config.set("block_auto_adjust_ff_dim", false);
  config.copy("conv_L_cache", "shortconv.l_cache");
  config.copy("max_position_embeddings", "context_length");
  config.copy_real("norm_eps", "attention.layer_norm_rms_epsilon");
  config.copy_real("rope_theta", "rope.freq_base");
  config.set("conv_bias", file.find("blk.0.shortconv.conv.bias") != nullptr);
  const std::vector<int64_t>* kv_heads = file.integers(config.scope() + "attention.head_count_kv");
  if (kv_heads == nullptr || kv_heads->empty())
    throw make_error(ErrorCode::kInvalidData, "{}: expected lfm2.attention.head_count_kv with a number a layer",
                     file.path());
  Json::Array types;
  for (const int64_t heads : *kv_heads) types.push_back(heads > 0 ? "full_attention" : "conv");
  config.set("layer_types", std::move(types));
  config.set("num_key_value_heads", std::max<int64_t>(1, *std::max_element(kv_heads->begin(), kv_heads->end())));
  return config.text();
}

const std::vector<GgufTensorRule> kMambaWhole = {
    {"token_embd.weight", "backbone.embeddings.weight"},
    {"output_norm.weight", "backbone.norm_f.weight"},
    {"output.weight", "lm_head.weight"},
};

const GgufArchitecture kArchitectures[] = {
    {"mamba",
     "backbone.layers.",
     kMambaWhole,
     {{"attn_norm.weight", "norm.weight"},
      {"ssm_in.weight", "mixer.in_proj.weight"},
      {"ssm_conv1d.weight", "mixer.conv1d.weight", T::kConv},
      {"ssm_conv1d.bias", "mixer.conv1d.bias"},
      {"ssm_x.weight", "mixer.x_proj.weight"},
      {"ssm_dt.weight", "mixer.dt_proj.weight"},
      {"ssm_dt.bias", "mixer.dt_proj.bias"},
      {"ssm_a", "mixer.A_log", T::kLogOfMinus},
      {"ssm_d", "mixer.D"},
      {"ssm_out.weight", "mixer.out_proj.weight"}},
     mamba_config},
    {"mamba2",
     "backbone.layers.",
     kMambaWhole,
     {{"attn_norm.weight", "norm.weight"},
      {"ssm_in.weight", "mixer.in_proj.weight"},
      {"ssm_conv1d.weight", "mixer.conv1d.weight", T::kConv},
      {"ssm_conv1d.bias", "mixer.conv1d.bias"},
      {"ssm_dt.bias", "mixer.dt_bias"},
      {"ssm_a", "mixer.A_log", T::kLogOfMinus},
      {"ssm_d", "mixer.D", T::kFlat},
      {"ssm_norm.weight", "mixer.norm.weight", T::kFlat},
      {"ssm_out.weight", "mixer.out_proj.weight"}},
     mamba2_config},
    {"lfm2",
     "model.layers.",
     {{"token_embd.weight", "model.embed_tokens.weight"},
      {"token_embd_norm.weight", "model.embedding_norm.weight"},
      {"output_norm.weight", "model.embedding_norm.weight"},
      {"output.weight", "lm_head.weight"}},
     {{"attn_norm.weight", "operator_norm.weight"},
      {"attn_q.weight", "self_attn.q_proj.weight"},
      {"attn_k.weight", "self_attn.k_proj.weight"},
      {"attn_v.weight", "self_attn.v_proj.weight"},
      {"attn_output.weight", "self_attn.out_proj.weight"},
      {"attn_q_norm.weight", "self_attn.q_layernorm.weight"},
      {"attn_k_norm.weight", "self_attn.k_layernorm.weight"},
      {"shortconv.conv.weight", "conv.conv.weight", T::kConv},
      {"shortconv.in_proj.weight", "conv.in_proj.weight"},
      {"shortconv.out_proj.weight", "conv.out_proj.weight"},
      {"ffn_norm.weight", "ffn_norm.weight"},
      {"ffn_gate.weight", "feed_forward.w1.weight"},
      {"ffn_up.weight", "feed_forward.w3.weight"},
      {"ffn_down.weight", "feed_forward.w2.weight"}},
     lfm2_config},
};

}  // namespace

const GgufArchitecture& gguf_architecture(const GgufFile& file) {
  const std::string_view name = file.text("general.architecture").value_or("");
  std::string known;
  for (const GgufArchitecture& architecture : kArchitectures) {
    if (architecture.name == name) return architecture;
    known += (known.empty() ? "" : ", ") + std::string(architecture.name);
  }
  throw make_error(ErrorCode::kUnsupported, "{}: general.architecture is '{}'; GGUF files of {} are read", file.path(),
                   std::string(name), known);
}

}  // namespace coluber
