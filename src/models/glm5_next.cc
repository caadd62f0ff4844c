// SPDX-License-Identifier: Apache-2.0
//
// GLM-5 Next (Z.ai, 2026), the text part: several residual streams that each half of a block reads by weights it learns
// (manifold-constrained hyper-connections, Xie et al., 2025), Kimi Delta Attention with bounded decays, and latent
// attention without positions to the blocks of keys that an indexer chooses; then an MLP, or experts with a sigmoid
// router and a shared expert. With H the streams [S, D] of a token, for the mixer and for the MLP:
//
//   pre, post, comb = hyper(H)        y = layer(norm(sum_s pre_s H_s))        H'_s = post_s y + sum_k comb[k, s] H_k
#include <algorithm>
#include <cmath>

#include "base/json.h"
#include "coluber/registry.h"
#include "formats/hf_config.h"
#include "kernels/gemm/gemm.h"
#include "kernels/norm/norm.h"
#include "layers/kimi_delta_attention.h"
#include "layers/latent_attention.h"
#include "layers/mlp.h"
#include "layers/moe.h"
#include "layers/recurrent_layer.h"
#include "models/activation_field.h"
#include "models/expert_fields.h"
#include "models/hybrid_fields.h"
#include "models/sizes.h"
#include "models/streams_decoder.h"
#include "tensor/workspace.h"

namespace coluber {
namespace {

constexpr int64_t kMostStreams = 16;

struct IndexerConfig {
  int64_t num_heads = 0, head_dim = 0, topk = 0, pool = 0;
};

struct Glm5Config {
  int64_t vocab_size = 0, hidden_size = 0, num_hidden_layers = 0, intermediate_size = 0, max_position_embeddings = 0;
  int64_t hc_mult = 0, hc_sinkhorn_iters = 0;
  double rms_norm_eps = 0, hc_eps = 0, swiglu_limit = 0;
  bool tie_word_embeddings = false;
  Activation hidden_act = Activation::kSilu;
  std::vector<std::string> layer_types, mlp_layer_types;
  KimiDeltaAttentionConfig delta;
  LatentAttentionConfig attention;
  IndexerConfig indexer;
  MoeConfig moe;

  bool is_linear(int64_t layer) const { return layer_types[static_cast<size_t>(layer)] == "linear_attention"; }
  bool has_experts(int64_t layer) const { return mlp_layer_types[static_cast<size_t>(layer)] == "sparse"; }
};

void read_layer_types(ConfigFields& fields, Glm5Config& c) {
  c.layer_types =
      read_layer_kinds(fields, {"layer_types"}, {"linear_attention", "full_attention", "indexed_attention"});
  fields.optional("mlp_layer_types", &c.mlp_layer_types, {}, one_of({"dense", "sparse"}));
  for (int64_t i = 0; i < c.num_hidden_layers && fields.ok(); ++i) {
    if (!fields.has("layer_types")) c.layer_types.push_back(i % 4 == 3 ? "indexed_attention" : "linear_attention");
    if (!fields.has("mlp_layer_types")) c.mlp_layer_types.push_back(i < 3 ? "dense" : "sparse");
  }
  fields
      .check([&] { return static_cast<int64_t>(c.layer_types.size()) == c.num_hidden_layers; },
             "layer_types must name num_hidden_layers layers")
      .check([&] { return static_cast<int64_t>(c.mlp_layer_types.size()) == c.num_hidden_layers; },
             "mlp_layer_types must name num_hidden_layers layers");
}

// `text`: the object that `fields` reads.
void read_delta(ConfigFields& fields, const Json& text, Glm5Config& c) {
  KimiDeltaAttentionConfig& delta = c.delta;
  bool safe_gate = true;
  fields.optional("linear_head_dim", &delta.head_dim, 128, head_dim_bound())
      .optional("linear_num_heads", &delta.num_heads, 64, heads_bound())
      .optional("linear_conv_kernel_dim", &delta.conv_kernel, 4, between(2, 16))
      .optional("linear_lower_bound", &delta.gate_lower_bound, between(-1e6, -1e-6));
  // -5 where the field is not there, as transformers has it; a null stands for none.
  if (text.find("linear_lower_bound") == nullptr) delta.gate_lower_bound = -5.0;
  ConfigFields linear = fields.nested("linear_attn_config");
  linear.optional("head_dim", &delta.head_dim, delta.head_dim, head_dim_bound())
      .optional("num_heads", &delta.num_heads, delta.num_heads, heads_bound())
      .optional("short_conv_kernel_size", &delta.conv_kernel, delta.conv_kernel, between(2, 16))
      .optional("safe_gate", &safe_gate, true);
  if (linear.has("gate_lower_bound"))
    linear.optional("gate_lower_bound", &delta.gate_lower_bound, between(-1e6, -1e-6));
  if (text.find("linear_attn_config") != nullptr && safe_gate && !delta.gate_lower_bound) delta.gate_lower_bound = -5.0;
  delta.hidden_size = c.hidden_size;
  delta.norm_eps = c.rms_norm_eps;
  fields.check([&] { return delta.head_dim <= 512; }, "the head dim of linear attention must be at most 512")
      .check([&] { return delta.num_heads * delta.head_dim <= kMostWidth / 3; },
             fmt::format("heads times head dim of linear attention must be at most {}", kMostWidth / 3));
}

void read_indexer(ConfigFields& fields, Glm5Config& c) {
  IndexerConfig& indexer = c.indexer;
  std::vector<std::string> types;
  bool tail = true;
  int64_t frequency = 1;
  fields.optional("index_topk", &indexer.topk, 2048, positive())
      .optional("index_head_dim", &indexer.head_dim, 128, head_dim_bound())
      .optional("index_n_heads", &indexer.num_heads, 32, heads_bound())
      .optional("index_kpool", &indexer.pool, 16, between(1, 1 << 12))
      .optional("index_kpool_always_select_tail", &tail, true)
      .optional("indexer_types", &types, {}, one_of({"full", "shared"}))
      .optional("index_topk_freq", &frequency, 1, positive())
      .check([&] { return tail; }, "index_kpool_always_select_tail must be true: a query would not see itself")
      .check([&] { return indexer.topk % indexer.pool == 0; }, "index_kpool must divide index_topk")
      .check([&] { return indexer.num_heads * indexer.head_dim <= kMostWidth; },
             fmt::format("index_n_heads * index_head_dim must be at most {}", kMostWidth))
      .check(
          [&] {
            if (types.empty()) return frequency == 1 && !fields.has("index_topk_pattern");
            for (size_t i = 0; i < types.size() && i < c.layer_types.size(); ++i)
              if (types[i] == "shared" && !c.is_linear(static_cast<int64_t>(i))) return false;
            return true;
          },
          "indexer_types: layers of attention that share another's choice of keys are not supported");
}

void read_attention(ConfigFields& fields, Glm5Config& c) {
  LatentAttentionConfig defaults;
  defaults.q_lora_rank = 1536;
  defaults.kv_lora_rank = 512;
  defaults.qk_nope_head_dim = defaults.v_head_dim = 256;
  c.attention = read_latent_fields(fields, defaults, 0);
  c.attention.hidden_size = c.hidden_size;
  c.attention.norm_eps = c.rms_norm_eps;
  c.attention.export_heads = true;
}

void read_experts(ConfigFields& fields, Glm5Config& c) {
  MoeConfig& moe = c.moe;
  int64_t shared = 0;
  fields.alias("n_routed_experts", {"num_local_experts"});
  fields.optional("moe_intermediate_size", &moe.intermediate_size, 2048, width_bound())
      .optional("n_routed_experts", &moe.num_experts, 288, experts_bound())
      .optional("num_experts_per_tok", &moe.top_k, 8, experts_bound())
      .optional("n_shared_experts", &shared, 1, between(1, 1 << 10))
      .optional("n_group", &moe.num_groups, 1, experts_bound())
      .optional("topk_group", &moe.topk_groups, 1, experts_bound())
      .optional("norm_topk_prob", &moe.renormalize, true)
      .optional("routed_scaling_factor", &moe.scale, 2.5, finite())
      .check([&] { return moe.intermediate_size * shared <= kMostWidth; },
             fmt::format("n_shared_experts * moe_intermediate_size must be at most {}", kMostWidth));
  check_expert_groups(fields, {moe.num_experts, moe.top_k, moe.num_groups, moe.topk_groups});
  moe.hidden_size = c.hidden_size;
  moe.w1 = "gate_proj";
  moe.w3 = "up_proj";
  moe.w2 = "down_proj";
  moe.limit = static_cast<float>(c.swiglu_limit);
  moe.score = RouterScore::kSigmoid;
  moe.selection_bias = "gate.e_score_correction_bias";
  moe.epsilon = 1e-20;
  moe.shared.emplace();
  moe.shared->hidden_size = c.hidden_size;
  moe.shared->intermediate_size = moe.intermediate_size * shared;
  moe.shared->limit = moe.limit;
}

void read_text(ConfigFields& fields, const Json& text, Glm5Config& c) {
  fields.required("vocab_size", &c.vocab_size, vocab_bound())
      .required("hidden_size", &c.hidden_size, hidden_bound())
      .required("num_hidden_layers", &c.num_hidden_layers, layers_bound())
      .required("intermediate_size", &c.intermediate_size, width_bound())
      .optional("max_position_embeddings", &c.max_position_embeddings, 1048576, positive())
      .optional("rms_norm_eps", &c.rms_norm_eps, 1e-5, positive_finite())
      .optional("swiglu_limit", &c.swiglu_limit, 10.0, positive_finite())
      .optional("hc_mult", &c.hc_mult, 4, between(1, kMostStreams))
      .optional("hc_eps", &c.hc_eps, 1e-6, between(0, 1))
      .optional("hc_sinkhorn_iters", &c.hc_sinkhorn_iters, 20, between(1, 1000))
      .optional("tie_word_embeddings", &c.tie_word_embeddings, c.tie_word_embeddings);
  c.hidden_act = read_activation(fields, "hidden_act", "silu");
  fields.check([&] { return c.hidden_act == Activation::kSilu; },
               "hidden_act must be silu: the convolutions and the experts have no other");
  read_layer_types(fields, c);
  read_delta(fields, text, c);
  read_attention(fields, c);
  read_indexer(fields, c);
  read_experts(fields, c);
}

Glm5Config read_config(const std::string& text, const std::string& path) {
  const Json json = parse_config(text, path);
  ConfigFields fields(json, path);
  Glm5Config c;
  if (fields.has("text_config")) {
    fields.optional("tie_word_embeddings", &c.tie_word_embeddings, false);
    ConfigFields nested = fields.nested("text_config");
    read_text(nested, *json.find("text_config"), c);
  } else {
    read_text(fields, json, c);
  }
  fields.finish();
  return c;
}

// The indexer: a token notes a key and what that key counts in its pool, channel by channel.
class PooledIndexer final : public KeySelector {
 public:
  PooledIndexer(const Glm5Config& c, const WeightLoader& loader)
      : KeySelector(selector_config(c.indexer)),
        query_(loader, "wq_b", *c.attention.q_lora_rank, c.indexer.num_heads * c.indexer.head_dim, false),
        key_(loader, "wk", c.hidden_size, c.indexer.head_dim, false),
        key_norm_(loader, "k_norm", c.indexer.head_dim, 1e-6),
        weights_(loader, "weights_proj", c.hidden_size, c.indexer.num_heads, false) {
    WeightLoader own = loader;
    place_bias_ = own.take_float("index_kpool_compress_ape", Shape{c.indexer.pool, c.indexer.head_dim});
    gate_ = pack_weight(own, own.take("index_kpool_compress_gate", Shape{c.indexer.head_dim, c.hidden_size}));
  }

 protected:
  void make_notes(const ForwardBatch& batch, const float* x, float* note) override {
    const int64_t tokens = batch.num_tokens(), dim = config().key_dim, stride = config().note_dim;
    WorkspaceScope scope(*batch.workspace);
    float* key = batch.workspace->take<float>(tokens * dim);
    key_.forward(batch, x, tokens, key);
    key_norm_.forward(batch, key, tokens, key);
    for (int64_t t = 0; t < tokens; ++t) std::copy_n(key + t * dim, dim, note + t * stride);
    GemmArgs args;
    args.a = x;
    args.lda = gate_.k();
    args.m = tokens;
    args.w = &gate_;
    args.c = note + dim;
    args.ldc = stride;
    gemm()(args, batch);
  }

  bool make_queries(const ForwardBatch& batch, const float* x, const float* query_source, float* q,
                    float* weights) override {
    const int64_t tokens = batch.num_tokens(), heads = config().num_heads;
    query_.forward(batch, query_source, tokens, q);
    weights_.forward(batch, x, tokens, weights);
    const float scale = 1.0f / std::sqrt(static_cast<float>(heads));
    for (int64_t i = 0; i < tokens * heads; ++i) weights[i] *= scale;
    return true;
  }

  void pool(const float* notes, int64_t, float* key) const override {
    const int64_t dim = config().key_dim, stride = config().note_dim, size = config().block_size;
    for (int64_t d = 0; d < dim; ++d) {
      const auto logit = [&](int64_t j) {
        return notes[j * stride + dim + d] + place_bias_[static_cast<size_t>(j * dim + d)];
      };
      float top = logit(0);
      for (int64_t j = 1; j < size; ++j) top = std::max(top, logit(j));
      double sum = 0, value = 0;
      for (int64_t j = 0; j < size; ++j) {
        const double weight = std::exp(static_cast<double>(logit(j)) - top);
        sum += weight;
        value += weight * notes[j * stride + d];
      }
      key[d] = static_cast<float>(value / sum);
    }
  }

 private:
  static KeySelectorConfig selector_config(const IndexerConfig& c) {
    KeySelectorConfig config;
    config.num_heads = c.num_heads;
    config.key_dim = c.head_dim;
    config.note_dim = 2 * c.head_dim;
    config.block_size = c.pool;
    config.budget = c.topk / c.pool;
    config.scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim));
    return config;
  }

  Linear query_, key_;
  LayerNorm key_norm_;
  Linear weights_;
  std::vector<float> place_bias_;  // [pool, head_dim]
  PackedMatrix gate_;              // [head_dim, hidden_size]
};

// How one half of a block reads and writes the streams.
class HyperConnection {
 public:
  HyperConnection(const Glm5Config& c, WeightLoader loader, const std::string& name)
      : streams_(c.hc_mult),
        hidden_size_(c.hidden_size),
        iterations_(c.hc_sinkhorn_iters),
        eps_(c.hc_eps),
        norm_eps_(static_cast<float>(c.rms_norm_eps)),
        base_(loader.take_float(name + "_base", Shape{mixes()})),
        scale_(loader.take_float(name + "_scale", Shape{3})),
        fn_(pack_weight(loader, loader.take(name + "_fn", Shape{mixes(), c.hc_mult * c.hidden_size}))) {}

  // What a half takes from the streams x [T, S, D] to `collapsed` [T, D], and how it will give back: mix [T, mixes].
  void read(const ForwardBatch& batch, const float* x, float* mix, float* collapsed) const {
    const int64_t tokens = batch.num_tokens(), width = streams_ * hidden_size_;
    WorkspaceScope scope(*batch.workspace);
    float* normed = batch.workspace->take<float>(tokens * width);
    RmsNormArgs norm;
    norm.x = x;
    norm.y = normed;
    norm.x_stride = norm.y_stride = norm.cols = width;
    norm.rows = tokens;
    norm.eps = norm_eps_;
    rms_norm()(norm, batch);
    GemmArgs args;
    args.a = normed;
    args.lda = width;
    args.m = tokens;
    args.w = &fn_;
    args.c = mix;
    args.ldc = mixes();
    gemm()(args, batch);
    batch.thread_pool->parallel_for(tokens, 4, [&](int64_t begin, int64_t end, int) {
      for (int64_t t = begin; t < end; ++t) {
        finish_mix(mix + t * mixes());
        float* out = collapsed + t * hidden_size_;
        std::fill_n(out, hidden_size_, 0.0f);
        for (int64_t s = 0; s < streams_; ++s) {
          const float pre = mix[t * mixes() + s];
          const float* from = x + (t * streams_ + s) * hidden_size_;
          for (int64_t d = 0; d < hidden_size_; ++d) out[d] += pre * from[d];
        }
      }
    });
  }

  // The half's result y [T, D] into the streams.
  void write(const ForwardBatch& batch, const float* mix, const float* y, float* x) const {
    batch.thread_pool->parallel_for(batch.num_tokens(), 4, [&](int64_t begin, int64_t end, int) {
      for (int64_t t = begin; t < end; ++t) {
        const float *post = mix + t * mixes() + streams_, *comb = post + streams_;
        float* own = x + t * streams_ * hidden_size_;
        for (int64_t d = 0; d < hidden_size_; ++d) {
          float old[kMostStreams];
          for (int64_t k = 0; k < streams_; ++k) old[k] = own[k * hidden_size_ + d];
          for (int64_t s = 0; s < streams_; ++s) {
            float sum = post[s] * y[t * hidden_size_ + d];
            for (int64_t k = 0; k < streams_; ++k) sum += comb[k * streams_ + s] * old[k];
            own[s * hidden_size_ + d] = sum;
          }
        }
      }
    });
  }

  int64_t mixes() const { return (2 + streams_) * streams_; }

 private:
  // Logits to pre [S], post [S] and the nearly doubly stochastic comb [S, S] (Sinkhorn and Knopp, 1967).
  void finish_mix(float* mix) const {
    const int64_t n = streams_;
    const auto logit = [&](int64_t i, size_t part) {
      return static_cast<double>(mix[i]) * scale_[part] + base_[static_cast<size_t>(i)];
    };
    double comb[kMostStreams * kMostStreams] = {};
    for (int64_t r = 0; r < n; ++r) {
      double top = logit(2 * n + r * n, 2), sum = 0;
      for (int64_t c = 1; c < n; ++c) top = std::max(top, logit(2 * n + r * n + c, 2));
      for (int64_t c = 0; c < n; ++c) sum += comb[r * n + c] = std::exp(logit(2 * n + r * n + c, 2) - top);
      for (int64_t c = 0; c < n; ++c) comb[r * n + c] = comb[r * n + c] / sum + eps_;
    }
    for (int64_t i = 0; i < n; ++i) {
      mix[i] = static_cast<float>(1.0 / (1.0 + std::exp(-logit(i, 0))) + eps_);
      mix[n + i] = static_cast<float>(2.0 / (1.0 + std::exp(-logit(n + i, 1))));
    }
    divide_lines(comb, n, 1);
    for (int64_t i = 1; i < iterations_; ++i) {
      divide_lines(comb, 1, n);
      divide_lines(comb, n, 1);
    }
    for (int64_t i = 0; i < n * n; ++i) mix[2 * n + i] = static_cast<float>(comb[i]);
  }

  // Each line of elements `along` apart by its sum; lines begin `across` apart.
  void divide_lines(double* comb, int64_t along, int64_t across) const {
    for (int64_t line = 0; line < streams_; ++line) {
      double sum = eps_;
      for (int64_t i = 0; i < streams_; ++i) sum += comb[line * across + i * along];
      for (int64_t i = 0; i < streams_; ++i) comb[line * across + i * along] /= sum;
    }
  }

  int64_t streams_, hidden_size_, iterations_;
  double eps_;
  float norm_eps_;
  std::vector<float> base_, scale_;
  PackedMatrix fn_;  // [mixes, S * D]
};

class Glm5Block final : public DecoderBlock {
 public:
  Glm5Block(const Glm5Config& c, const BlockContext& context)
      : hidden_size_(c.hidden_size),
        mixer_streams_(c, context.layer, "hc_attn"),
        mlp_streams_(c, context.layer, "hc_ffn"),
        input_norm_(context.layer, "input_layernorm", c.hidden_size, c.rms_norm_eps),
        post_norm_(context.layer, "post_attention_layernorm", c.hidden_size, c.rms_norm_eps),
        mlp_loader_(context.layer.scoped("mlp")) {
    const WeightLoader mixer = context.layer.scoped("self_attn");
    if (c.is_linear(context.index)) {
      delta_ = std::make_unique<KimiDeltaAttention>(c.delta, mixer);
    } else {
      attention_ = std::make_unique<LatentAttention>(c.attention, mixer,
                                                     std::make_unique<PooledIndexer>(c, mixer.scoped("indexer")));
    }
    if (c.has_experts(context.index)) {
      experts_ = std::make_unique<MoeBlock>(c.moe, mlp_loader_);
    } else {
      MlpConfig mlp;
      mlp.hidden_size = c.hidden_size;
      mlp.intermediate_size = c.intermediate_size;
      mlp.limit = static_cast<float>(c.swiglu_limit);
      mlp_ = std::make_unique<Mlp>(mlp, mlp_loader_);
    }
  }

  void forward(const ForwardBatch& batch, const DecoderStream& stream) override {
    const int64_t tokens = batch.num_tokens();
    WorkspaceScope scope(*batch.workspace);
    float* mix = batch.workspace->take<float>(tokens * mixer_streams_.mixes());
    float* in = batch.workspace->take<float>(tokens * hidden_size_);
    float* out = batch.workspace->take<float>(tokens * hidden_size_);
    mixer_streams_.read(batch, stream.x, mix, in);
    input_norm_.forward(batch, in, tokens, in);
    if (delta_)
      delta_->forward(batch, in, out);
    else
      attention_->forward(batch, in, out);
    mixer_streams_.write(batch, mix, out, stream.x);
    mlp_streams_.read(batch, stream.x, mix, in);
    post_norm_.forward(batch, in, tokens, in);
    if (experts_)
      experts_->forward(batch, in, out);
    else
      mlp_->forward(batch, in, out);
    mlp_streams_.write(batch, mix, out, stream.x);
  }

  void describe(std::vector<LayerInfo>& layers) const override {
    if (delta_)
      layers.push_back({delta_->layer_name(), "kda", delta_.get()});
    else
      layers.push_back({attention_->layer_name(), "sparse_latent_attention", attention_.get()});
    layers.push_back({layer_name_of(mlp_loader_), experts_ ? "moe" : "mlp", nullptr});
  }

 private:
  int64_t hidden_size_;
  HyperConnection mixer_streams_, mlp_streams_;
  RmsNorm input_norm_, post_norm_;
  WeightLoader mlp_loader_;
  std::unique_ptr<KimiDeltaAttention> delta_;  // one of the two
  std::unique_ptr<LatentAttention> attention_;
  std::unique_ptr<MoeBlock> experts_;  // one of the two
  std::unique_ptr<Mlp> mlp_;
};

class MeanExit final : public StreamsExit {
 public:
  MeanExit(const Glm5Config& c, const WeightLoader& loader)
      : streams_(c.hc_mult), norm_(loader, "norm", c.hidden_size, c.rms_norm_eps) {}

  void forward(const ForwardBatch& batch, const float* streams, float* out) const override {
    const int64_t d = norm_.size();
    for (int64_t t = 0; t < batch.num_tokens(); ++t) {
      for (int64_t i = 0; i < d; ++i) {
        float sum = 0;
        for (int64_t s = 0; s < streams_; ++s) sum += streams[(t * streams_ + s) * d + i];
        out[t * d + i] = sum / static_cast<float>(streams_);
      }
    }
    norm_.forward(batch, out, batch.num_tokens(), out);
  }

 private:
  int64_t streams_;
  RmsNorm norm_;
};

std::unique_ptr<Model> load(ModelLoadContext& context) {
  const Glm5Config c = read_config(context.config_json, context.config_path);
  DecoderConfig decoder = decoder_config("glm5_next", c, c.rms_norm_eps);
  decoder.base = text_part_base(context.weights);
  decoder.ignored = {{"model.visual", "the vision tower is not run"},
                     {fmt::format("{}.layers.{}.", decoder.base, c.num_hidden_layers),
                      "heads that predict several tokens are not run"}};
  return std::make_unique<StreamsDecoder>(
      context, decoder, c.hc_mult, [&](const BlockContext& block) { return std::make_unique<Glm5Block>(c, block); },
      [&](const BlockContext& exit) { return std::make_unique<MeanExit>(c, exit.base); });
}

const RegisterModel kGlm5({"glm5_next", {"Glm5NextForConditionalGeneration"}, load});

}  // namespace
}  // namespace coluber
