// SPDX-License-Identifier: Apache-2.0
//
// Kimi Delta Attention (Kimi Team, Kimi Linear, 2025): the delta rule with a decay for each channel of the keys, from a
// low-rank projection. q, k, v each pass a causal convolution with SiLU; q and k are normalised; the output is normed
// and gated by a sigmoid, head by head:
//
//   g = -exp(A_log) * softplus(f + dt_bias),  with a lower bound L < 0 instead  g = L * sigmoid(exp(A_log) * (f +
//   dt_bias)) y = out_proj(norm(delta_rule(q, k, v, exp(g), sigmoid(b))) * sigmoid(gate))     f = f_b(f_a(x)), gate =
//   g_b(g_a(x))
//
// The three convolutions keep one state, in thirds. Owns its weights, never its pages. Made and bound on one thread;
// one forward at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "coluber/mamba_base.h"
#include "coluber/model.h"
#include "layers/linear.h"
#include "layers/norm.h"
#include "layers/weight_loader.h"

namespace coluber {

struct KimiDeltaAttentionConfig {
  int64_t hidden_size = 0;
  int64_t num_heads = 0;
  int64_t head_dim = 0;  // of keys and values
  int64_t conv_kernel = 0;
  double norm_eps = 1e-5;
  std::optional<double> gate_lower_bound = std::nullopt;  // of g
  Shape a_log_shape;                                      // as stored; empty: [num_heads]

  int64_t width() const { return num_heads * head_dim; }
};

class KimiDeltaAttention : public MambaBase {
 public:
  // `loader` is scoped to the layer, whose name it gives; registers the layer in the loader's configuration. Throws
  // Error(kInvalidConfig) naming each size that makes no sense.
  KimiDeltaAttention(const KimiDeltaAttentionConfig& config, WeightLoader loader);

  std::vector<Shape> get_state_shape() const override;
  std::vector<DType> get_state_dtype() const override;  // the recurrent state is float32 whatever is asked for
  std::vector<StateLaneOrder> get_state_lane_order() const override;
  MambaAttentionBackendEnum mamba_type() const override { return MambaAttentionBackendEnum::kGdnAttn; }
  std::optional<int64_t> get_prefill_checkpoint_alignment() const override { return 1; }

  // x [T, hidden_size] to y [T, hidden_size], overwritten unless `accumulate`; y must not overlap x.
  void forward(const ForwardBatch& batch, const float* x, float* y, bool accumulate = false);

 private:
  // [T, 3 * width], before the convolutions.
  void project_qkv(const ForwardBatch& batch, const float* x, float* qkv) const;
  // Through a projection to head_dim and one from it, [T, width].
  void project_low_rank(const ForwardBatch& batch, const Linear& down, const Linear& up, const float* x,
                        float* out) const;
  void norm_and_gate(const ForwardBatch& batch, const float* gate, float* y) const;

  KimiDeltaAttentionConfig config_;
  EngineConfig& engine_config_;
  Linear q_proj_, k_proj_, v_proj_;
  Linear f_a_proj_, f_b_proj_, b_proj_, g_a_proj_, g_b_proj_, out_proj_;
  RmsNorm out_norm_;
  FloatArray conv_weight_;  // [W, 3 * width]
  FloatArray dt_bias_;      // [width]
  FloatArray rate_;         // [num_heads] exp(A_log)
};

}  // namespace coluber
