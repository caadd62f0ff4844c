// SPDX-License-Identifier: Apache-2.0
//
// Gated DeltaNet (Yang et al., 2024) and DeltaNet (Yang et al., 2024, without the decay), as the families have them:
//
//   q | k | v = activation(conv1d(projections of h))      one causal convolution over all three
//   g         = -exp(A_log) * softplus(a + dt_bias)       beta = sigmoid(b), twice that with negative eigenvalues
//   o         = delta_rule(norm(q) * K^-0.5, norm(k), v, exp(g), beta)
//   out       = out_proj(rms_norm(o) * silu(z))           head by head; the gate z is optional
//
// Families differ in how the projections are stored (DeltaProjections) and in names. States: the window over q | k | v,
// and S in kernels/delta/delta_rule.h's order. Owns its weights, never its states: the cache binds them. Made and bound
// on one thread; one forward at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "coluber/mamba_base.h"
#include "coluber/model.h"
#include "kernels/norm/norm.h"
#include "layers/delta_step.h"
#include "layers/linear.h"
#include "layers/weight_loader.h"

namespace coluber {

enum class DeltaProjections {
  kSeparate,   // q_proj, k_proj, v_proj, a_proj, b_proj, g_proj; q_conv1d, k_conv1d, v_conv1d (or one conv1d)
  kTogether,   // in_proj_qkv, in_proj_z, in_proj_a, in_proj_b; conv1d
  kByKeyHead,  // in_proj_qkvz: each key head's q, k, then v and z of its value heads; in_proj_ba: b, then a; conv1d
};

enum class DeltaKeyNorm {
  kL2,   // x / sqrt(sum of squares + 1e-6)
  kSum,  // x / max(sum of sizes, 1e-6)
};

enum class DeltaKeyActivation { kSilu, kRelu, kElu, kNone };  // kElu: elu(x) + 1

struct GatedDeltaNetConfig {
  int64_t hidden_size = 0;
  int64_t num_k_heads = 0;  // divides num_v_heads
  int64_t num_v_heads = 0;
  int64_t head_k_dim = 0;
  int64_t head_v_dim = 0;
  int64_t conv_kernel = 0;
  bool stored_convs = true;  // false: the checkpoint has no convolutions, only what follows them
  DeltaProjections projections = DeltaProjections::kSeparate;
  bool decay = true;
  bool beta = true;  // false: 1, or 2 with allow_neg_eigval
  bool allow_neg_eigval = false;
  bool output_gate = true;
  DeltaKeyNorm key_norm = DeltaKeyNorm::kL2;
  DeltaKeyActivation key_activation = DeltaKeyActivation::kSilu;  // of q and k; v has SiLU
  double norm_eps = 1e-6;
  Gate output_gate_function = Gate::kSilu;
  std::vector<std::string> state_names = {"conv", "recurrent"};
  // Tensor names below the layer's prefix, without ".weight".
  std::string norm = "o_norm";
  std::string out_proj = "o_proj";

  int64_t key_width() const { return num_k_heads * head_k_dim; }
  int64_t value_width() const { return num_v_heads * head_v_dim; }
  int64_t conv_channels() const { return 2 * key_width() + value_width(); }
};

class GatedDeltaNet : public MambaBase {
 public:
  // `loader` is scoped to the layer ("model.layers.2.linear_attn", which becomes its name); registers the layer in the
  // loader's configuration, which must outlive it. Throws Error(kInvalidConfig) naming each size that makes no sense.
  GatedDeltaNet(const GatedDeltaNetConfig& config, WeightLoader loader);

  std::vector<Shape> get_state_shape() const override;
  std::vector<DType> get_state_dtype() const override;
  std::vector<StateLaneOrder> get_state_lane_order() const override;
  std::vector<std::string> get_state_names() const override { return config_.state_names; }
  MambaAttentionBackendEnum mamba_type() const override { return MambaAttentionBackendEnum::kGdnAttn; }
  std::optional<int64_t> get_prefill_checkpoint_alignment() const override { return 1; }

  // x [T, hidden_size] to y [T, hidden_size], overwritten unless `accumulate`; y must not overlap x.
  void forward(const ForwardBatch& batch, const float* x, float* y, bool accumulate = false);

 private:
  // What the projections give, each [T, width] with its row stride.
  struct Projected {
    float* qkv = nullptr;  // [T, conv_channels]
    float* z = nullptr;    // [T, value_width], or null
    float* a = nullptr;    // [T, num_v_heads], or null
    float* b = nullptr;    // [T, num_v_heads], or null
  };
  void take_projections(WeightLoader& loader);
  Projected project(const ForwardBatch& batch, const float* x) const;
  void take_by_key_head(WeightLoader& loader);
  void convolve(const ForwardBatch& batch, const DeltaStep& step, const float* in, float* out) const;
  void norm_keys_by_sum(const ForwardBatch& batch, float* qkv) const;
  void norm_and_gate(const ForwardBatch& batch, const float* z, float* o) const;

  GatedDeltaNetConfig config_;
  const EngineConfig& engine_config_;
  std::vector<Linear> qkv_;  // one, or q, k and v
  std::optional<Linear> z_, a_, b_;
  std::optional<Linear> out_proj_;
  FloatArray conv_weight_;     // [W, conv_channels]
  FloatArray rate_, dt_bias_;  // [num_v_heads], empty without a decay; rate = exp(A_log)
  FloatArray norm_weight_;     // [head_v_dim]
};

}  // namespace coluber
