// SPDX-License-Identifier: Apache-2.0
//
// xLSTM (Beck et al., 2024; the form of xLSTM-7B, arXiv 2503.13427): blocks of matrix memories with exponential gates,
// each followed by a gated MLP. x = x + mlstm(norm_mlstm(x)); x = x + ffn(norm_ffn(x)). Logits are capped.
#include <cmath>

#include "base/json.h"
#include "coluber/registry.h"
#include "formats/hf_config.h"
#include "layers/mlp.h"
#include "layers/mlstm.h"
#include "layers/norm.h"
#include "layers/recurrent_layer.h"
#include "models/decoder.h"
#include "models/sizes.h"
#include "tensor/workspace.h"

namespace coluber {
namespace {

struct XlstmConfig {
  int64_t vocab_size = 0, hidden_size = 0, num_hidden_layers = 0, num_heads = 0, ffn_round_up_to_multiple_of = 0;
  double qk_dim_factor = 0, v_dim_factor = 0, ffn_proj_factor = 0, norm_eps = 0, eps = 0;
  double gate_soft_cap = 0, output_logit_soft_cap = 0;
  bool use_bias = false, tie_word_embeddings = false;
  std::string weight_mode;

  int64_t qk_dim() const { return static_cast<int64_t>(static_cast<double>(hidden_size) * qk_dim_factor); }
  int64_t v_dim() const { return static_cast<int64_t>(static_cast<double>(hidden_size) * v_dim_factor); }
  int64_t ffn_dim() const {
    const auto unit = static_cast<double>(ffn_round_up_to_multiple_of);
    const double width = static_cast<double>(hidden_size) * ffn_proj_factor;
    return static_cast<int64_t>(std::floor((width + unit - 1.0) / unit) * unit);
  }
  bool fused() const { return weight_mode == "fused"; }
};

bool is_width(int64_t width) { return width >= 1 && width <= kMostWidth; }

XlstmConfig read_config(const std::string& text, const std::string& path) {
  const Json json = parse_config(text, path);
  ConfigFields fields(json, path);
  XlstmConfig c;
  fields.alias("hidden_size", {"embedding_dim"}).alias("num_hidden_layers", {"num_blocks"});
  fields.required("vocab_size", &c.vocab_size, vocab_bound())
      .required("hidden_size", &c.hidden_size, hidden_bound())
      .required("num_hidden_layers", &c.num_hidden_layers, layers_bound())
      .optional("num_heads", &c.num_heads, 8, heads_bound())
      .optional("use_bias", &c.use_bias, false)
      .optional("norm_eps", &c.norm_eps, 1e-6, positive_finite())
      .optional("eps", &c.eps, 1e-6, positive_finite())
      .optional("qk_dim_factor", &c.qk_dim_factor, 0.5, between(1e-6, 1e3))
      .optional("v_dim_factor", &c.v_dim_factor, 1.0, between(1e-6, 1e3))
      .optional("ffn_proj_factor", &c.ffn_proj_factor, 2.667, between(1e-6, 1e3))
      .optional("ffn_round_up_to_multiple_of", &c.ffn_round_up_to_multiple_of, 64, width_bound())
      .optional("gate_soft_cap", &c.gate_soft_cap, 15.0, positive_finite())
      .optional("output_logit_soft_cap", &c.output_logit_soft_cap, 30.0, positive_finite())
      .optional("weight_mode", &c.weight_mode, "single", one_of({"single", "fused"}))
      .optional("tie_word_embeddings", &c.tie_word_embeddings, false)
      .check([&] { return is_width(c.qk_dim()) && is_width(c.v_dim()) && is_width(c.ffn_dim()); },
             fmt::format("hidden_size times qk_dim_factor, v_dim_factor and ffn_proj_factor (the last rounded up to "
                         "ffn_round_up_to_multiple_of) must be from 1 to {}",
                         kMostWidth))
      .check([&] { return c.qk_dim() % c.num_heads == 0 && c.v_dim() % c.num_heads == 0; },
             "num_heads must divide hidden_size * qk_dim_factor and hidden_size * v_dim_factor")
      .finish();
  return c;
}

MlstmConfig mlstm_config(const XlstmConfig& c) {
  MlstmConfig mlstm;
  mlstm.hidden_size = c.hidden_size;
  mlstm.num_heads = c.num_heads;
  mlstm.qk_dim = c.qk_dim();
  mlstm.v_dim = c.v_dim();
  mlstm.use_bias = c.use_bias;
  mlstm.fused = c.fused();
  mlstm.gate_soft_cap = c.gate_soft_cap;
  mlstm.eps = c.eps;
  mlstm.norm_eps = c.norm_eps;
  return mlstm;
}

MlpConfig ffn_config(const XlstmConfig& c) {
  MlpConfig ffn;
  ffn.hidden_size = c.hidden_size;
  ffn.intermediate_size = c.ffn_dim();
  ffn.bias = c.use_bias;
  ffn.gate = "proj_up_gate";
  ffn.up = "proj_up";
  ffn.down = "proj_down";
  if (c.fused()) ffn.gate_up = "proj_up_gate_z";
  return ffn;
}

// The block's RMS norms may have a bias.
class BlockNorm {
 public:
  BlockNorm(WeightLoader loader, const std::string& name, const XlstmConfig& c)
      : norm_(loader, name, c.hidden_size, c.norm_eps) {
    if (c.use_bias) bias_ = loader.take_float(name + ".bias", Shape{c.hidden_size});
  }
  void forward(const ForwardBatch& batch, const float* x, float* y) const {
    const int64_t tokens = batch.num_tokens(), cols = norm_.size();
    norm_.forward(batch, x, tokens, y);
    if (bias_.empty()) return;
    for (int64_t t = 0; t < tokens; ++t)
      for (int64_t c = 0; c < cols; ++c) y[t * cols + c] += bias_[static_cast<size_t>(c)];
  }

 private:
  RmsNorm norm_;
  std::vector<float> bias_;  // empty without
};

class XlstmBlock final : public DecoderBlock {
 public:
  XlstmBlock(WeightLoader loader, const XlstmConfig& c)
      : hidden_size_(c.hidden_size),
        norm_mlstm_(loader, "norm_mlstm", c),
        norm_ffn_(loader, "norm_ffn", c),
        mlstm_(mlstm_config(c), loader.scoped("mlstm_layer")),
        ffn_loader_(loader.scoped("ffn")),
        ffn_(ffn_config(c), ffn_loader_) {}

  void forward(const ForwardBatch& batch, const DecoderStream& stream) override {
    WorkspaceScope scope(*batch.workspace);
    float* normed = batch.workspace->take<float>(batch.num_tokens() * hidden_size_);  // [T, D]
    norm_mlstm_.forward(batch, stream.x, normed);
    mlstm_.forward(batch, normed, stream.x, /*accumulate=*/true);
    norm_ffn_.forward(batch, stream.x, normed);
    ffn_.forward(batch, normed, stream.x, /*accumulate=*/true);
  }

  void describe(std::vector<LayerInfo>& layers) const override {
    layers.push_back({mlstm_.layer_name(), "mlstm", &mlstm_});
    layers.push_back({layer_name_of(ffn_loader_), "mlp", nullptr});
  }

 private:
  int64_t hidden_size_;
  BlockNorm norm_mlstm_, norm_ffn_;
  Mlstm mlstm_;
  WeightLoader ffn_loader_;
  Mlp ffn_;
};

std::unique_ptr<Model> load(ModelLoadContext& context) {
  const XlstmConfig c = read_config(context.config_json, context.config_path);
  DecoderConfig decoder;
  decoder.architecture = "xlstm";
  decoder.vocab_size = c.vocab_size;
  decoder.hidden_size = c.hidden_size;
  decoder.num_layers = c.num_hidden_layers;
  decoder.norm_eps = c.norm_eps;
  // transformers never ties here: a stored head is the head whatever the config says.
  decoder.tied = c.tie_word_embeddings && !context.weights.contains("lm_head.weight");
  decoder.logits_softcap = c.output_logit_soft_cap;
  decoder.base = "backbone";
  decoder.embed_tokens = "embeddings";
  decoder.layers = "blocks";
  decoder.norm = "out_norm";
  return std::make_unique<Decoder>(
      context, decoder, [&](const BlockContext& block) { return std::make_unique<XlstmBlock>(block.layer, c); });
}

const RegisterModel kXlstm({"xlstm", {"xLSTMForCausalLM"}, load});

}  // namespace
}  // namespace coluber
