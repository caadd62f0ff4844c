// SPDX-License-Identifier: Apache-2.0
//
// Mamba (Gu and Dao, 2023) and Falcon-Mamba, which adds RMS norms without weights on dt, B and C. Per layer: x = x +
// mixer(norm(x)).
#include "base/json.h"
#include "coluber/registry.h"
#include "formats/hf_config.h"
#include "layers/embedding.h"
#include "layers/lm_head.h"
#include "layers/mamba_mixer.h"
#include "layers/norm.h"
#include "layers/weight_loader.h"
#include "models/sizes.h"
#include "tensor/workspace.h"

namespace coluber {
namespace {

struct MambaConfig {
  std::string model_type;
  int64_t vocab_size = 0, hidden_size = 0, num_hidden_layers = 0;
  int64_t state_size = 0, conv_kernel = 0, expand = 0, intermediate_size = 0, time_step_rank = 0;
  double layer_norm_epsilon = 0, mixer_rms_eps = 0;
  bool use_bias = false, use_conv_bias = true, tie_word_embeddings = true;
  std::string hidden_act;

  bool is_falcon() const { return model_type == "falcon_mamba"; }
};

MambaConfig read_config(const std::string& text, const std::string& path, const std::string& model_type) {
  const Json json = parse_config(text, path);
  ConfigFields fields(json, path);
  MambaConfig c;
  fields.alias("hidden_size", {"d_model"})
      .alias("num_hidden_layers", {"n_layer"})
      .alias("intermediate_size", {"d_inner"});
  c.model_type = model_type;
  fields.required("vocab_size", &c.vocab_size, vocab_bound())
      .required("hidden_size", &c.hidden_size, hidden_bound())
      .required("num_hidden_layers", &c.num_hidden_layers, layers_bound())
      .optional("state_size", &c.state_size, 16, width_bound())
      .optional("conv_kernel", &c.conv_kernel, 4, between(2, 8))
      .optional("expand", &c.expand, 2, between(1, 1 << 10));
  fields.optional("intermediate_size", &c.intermediate_size, c.expand * c.hidden_size, width_bound());
  // "auto" is what the configuration class itself writes before it is saved.
  const Json* rank = fields.find("time_step_rank");
  c.time_step_rank = (c.hidden_size + 15) / 16;
  if (rank != nullptr && !(rank->is_string() && rank->as_string() == "auto"))
    fields.required("time_step_rank", &c.time_step_rank, width_bound());
  fields.optional("layer_norm_epsilon", &c.layer_norm_epsilon, 1e-5, positive_finite())
      .optional("mixer_rms_eps", &c.mixer_rms_eps, 1e-6, positive_finite())
      .optional("use_bias", &c.use_bias, false)
      .optional("use_conv_bias", &c.use_conv_bias, true)
      .optional("tie_word_embeddings", &c.tie_word_embeddings, true)
      .optional("hidden_act", &c.hidden_act, "silu", one_of({"silu", "swish"}))
      .check([&] { return c.intermediate_size <= kMostWidth; },
             fmt::format("intermediate_size (expand * hidden_size) must be at most {}", kMostWidth))
      .finish();
  return c;
}

MambaMixerConfig mixer_config(const MambaConfig& c) {
  MambaMixerConfig mixer;
  mixer.hidden_size = c.hidden_size;
  mixer.intermediate_size = c.intermediate_size;
  mixer.state_size = c.state_size;
  mixer.conv_kernel = c.conv_kernel;
  mixer.time_step_rank = c.time_step_rank;
  mixer.use_bias = c.use_bias;
  mixer.use_conv_bias = c.use_conv_bias;
  if (c.is_falcon()) mixer.mixer_rms_eps = c.mixer_rms_eps;
  return mixer;
}

struct MambaBlock {
  RmsNorm norm;
  MambaMixer mixer;

  MambaBlock(WeightLoader loader, const MambaConfig& c)
      : norm(loader, "norm", c.hidden_size, c.layer_norm_epsilon), mixer(mixer_config(c), loader.scoped("mixer")) {}
};

// Both spellings are published.
std::string_view embedding_name(const WeightLoader& backbone) {
  return backbone.has("embedding.weight") ? "embedding" : "embeddings";
}

class Mamba final : public Model {
 public:
  Mamba(ModelLoadContext& context, const MambaConfig& c)
      : config_(c),
        loader_(context),
        backbone_(loader_.scoped("backbone")),
        embeddings_(backbone_, embedding_name(backbone_), c.vocab_size, c.hidden_size, c.tie_word_embeddings),
        norm_f_(backbone_, "norm_f", c.hidden_size, c.layer_norm_epsilon),
        lm_head_(loader_, "lm_head", embeddings_, c.tie_word_embeddings) {
    for (int64_t i = 0; i < c.num_hidden_layers; ++i) {
      layers_.push_back(std::make_unique<MambaBlock>(backbone_.scoped("layers." + std::to_string(i)), c));
      info_.layers.push_back({layers_.back()->mixer.layer_name(), "mamba1", &layers_.back()->mixer});
    }
    info_.architecture = c.model_type;
    info_.vocab_size = c.vocab_size;
    info_.hidden_size = c.hidden_size;
    info_.num_layers = c.num_hidden_layers;
    loader_.finish(info_);
  }

  const ModelInfo& info() const noexcept override { return info_; }

  void forward(const ForwardBatch& batch) override {
    const int64_t tokens = batch.num_tokens();
    const int64_t d = config_.hidden_size;
    WorkspaceScope scope(*batch.workspace);
    float* x = batch.workspace->take<float>(tokens * d);       // [T, D] residual stream
    float* normed = batch.workspace->take<float>(tokens * d);  // [T, D]
    embeddings_.forward(batch, x);
    for (size_t i = 0; i < layers_.size(); ++i) {
      layers_[i]->norm.forward(batch, x, tokens, normed);
      layers_[i]->mixer.forward(batch, normed, x, /*accumulate=*/true);
      batch.record_hidden(static_cast<int>(i), x, d);
    }
    norm_f_.forward(batch, x, tokens, normed);
    batch.record_hidden(static_cast<int>(layers_.size()), normed, d);
    lm_head_.forward(batch, normed);
  }

 private:
  MambaConfig config_;
  WeightLoader loader_;
  WeightLoader backbone_;
  Embedding embeddings_;
  std::vector<std::unique_ptr<MambaBlock>> layers_;
  RmsNorm norm_f_;
  LmHead lm_head_;
  ModelInfo info_;
};

// The family that was found says which it is: a config may name only its architecture.
ModelFamily family(const std::string& model_type, const std::string& architecture) {
  return {model_type, {architecture}, [model_type](ModelLoadContext& context) -> std::unique_ptr<Model> {
            return std::make_unique<Mamba>(context, read_config(context.config_json, context.config_path, model_type));
          }};
}

const RegisterModel kMamba(family("mamba", "MambaForCausalLM"));
const RegisterModel kFalconMamba(family("falcon_mamba", "FalconMambaForCausalLM"));

}  // namespace
}  // namespace coluber
