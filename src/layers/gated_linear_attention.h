// SPDX-License-Identifier: Apache-2.0
//
// Linear attention with separate projections, as flash-linear-attention's GLA, RetNet and HGRN2 have it:
//
//   q, k, v = q_proj(h), k_proj(h), v_proj(h)       each through a causal convolution of its own where there are some
//   S       = a S + k v^T                           o = scale q^T S
//   out     = o_proj(norm(o) * silu(g_proj(h)))     the gate is optional
//
// with the decay a constant a head (RetNet), from a low-rank projection a key channel (GLA), or from the keys'
// projection f between a learnt lower bound and 1, with key 1 - a (HGRN2). State: one window a convolution, then S
// [H, K, V]. Owns its weights, never its state: the cache binds it. Made and bound on one thread; one forward at a
// time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "coluber/linear_attention.h"
#include "coluber/mamba_base.h"
#include "coluber/model.h"
#include "kernels/moe/activation.h"
#include "kernels/rope/rope.h"
#include "layers/linear.h"
#include "layers/linear_attention_step.h"
#include "layers/rotation.h"
#include "layers/weight_loader.h"

namespace coluber {

enum class LinearDecay {
  kConstant,    // a = 1 - 2^(-5 - h)
  kLogSigmoid,  // a = sigmoid(gk_proj(h))^(1 / normalizer), gk_proj.0 and gk_proj.1 in a row; not below exp(clamp_min)
  kBounded,     // a = lower + (1 - lower) sigmoid(f), k = 1 - a, where f stands in the place of k
};

struct GatedLinearAttentionConfig {
  int64_t hidden_size = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;  // divides num_heads
  int64_t head_k_dim = 0;
  int64_t head_v_dim = 0;
  LinearDecay decay = LinearDecay::kConstant;
  int64_t gate_low_rank_dim = 16;                        // kLogSigmoid
  double gate_logit_normalizer = 16.0;                   // kLogSigmoid
  std::optional<double> clamp_min;                       // kLogSigmoid
  std::vector<float> lower_bound = {};                   // kBounded: [H * K], or empty: 0
  int64_t conv_size = 0;                                 // of each convolution; 0: none
  bool conv_silu = true;                                 // activation behind the convolutions
  bool q_silu = false;                                   // activation of queries
  std::optional<Activation> feature_map = std::nullopt;  // of queries and keys, before they turn
  std::optional<RopeConfig> rope = std::nullopt;
  bool output_gate = true;
  bool norm_all_heads = false;  // the norm spans all heads; else each alone, with one weight for all
  bool norm_weight = true;
  double norm_eps = 1e-5;
  // Tensor names below the layer's prefix, without ".weight". "<x>_proj" and "<x>_conv1d" by letter.
  std::string q = "q", k = "k", v = "v";
  std::string norm = "g_norm";
};

class GatedLinearAttention : public MambaBase {
 public:
  // `loader` is scoped to the layer ("model.layers.2.attn", which becomes its name); registers the layer in the
  // loader's configuration, which must outlive it. Throws Error(kInvalidConfig) where sizes do not fit together.
  GatedLinearAttention(const GatedLinearAttentionConfig& config, WeightLoader loader);

  std::vector<Shape> get_state_shape() const override;
  std::vector<DType> get_state_dtype() const override;
  std::vector<std::string> get_state_names() const override;
  MambaAttentionBackendEnum mamba_type() const override { return MambaAttentionBackendEnum::kLinear; }
  std::optional<int64_t> get_prefill_checkpoint_alignment() const override { return 1; }

  // x [T, hidden_size] to y [T, hidden_size], overwritten unless `accumulate`; y must not overlap x.
  void forward(const ForwardBatch& batch, const float* x, float* y, bool accumulate = false);

 private:
  struct Input {
    std::string name;
    Linear proj;
    FloatArray conv_weight;  // [W, C]; empty without a convolution
  };
  Input take_input(WeightLoader& loader, const std::string& name, int64_t width) const;
  int64_t state_elements() const { return config_.num_heads * config_.head_k_dim * config_.head_v_dim; }
  LinearAttentionStep begin(const ForwardBatch& batch) const;
  float* project(const ForwardBatch& batch, const LinearAttentionStep& step, size_t input, const float* x) const;
  void map_features(const ForwardBatch& batch, float* q, float* k) const;
  void rotate(const ForwardBatch& batch, float* q, float* k) const;
  // Sets the decay of `args`, and its keys where they come from it.
  void decay(const ForwardBatch& batch, const float* x, float* k, GatedLinearAttentionArgs& args) const;
  void finish(const ForwardBatch& batch, const float* x, float* out) const;

  GatedLinearAttentionConfig config_;
  const EngineConfig& engine_config_;
  Rotation rotation_;
  std::vector<Input> inputs_;  // q, k, v
  std::optional<Linear> gk_down_, gk_up_, g_proj_;
  Linear o_proj_;
  FloatArray norm_weight_;  // [V] or [H * V], or empty
  FloatArray slopes_;       // [H], kConstant
  FloatArray lower_bound_;  // as configured
};

}  // namespace coluber
