// SPDX-License-Identifier: Apache-2.0
//
// MiniMax's lightning attention:
//
//   q | k | v by head = silu(qkv_proj(h))       S = exp(-slope) S + k v^T       o = q^T S
//   out               = out_proj(rms_norm(o) * norm.weight * sigmoid(output_gate(h)))      the norm spans all heads
//
// State: S [H, D, D], key by value. Owns its weights, never its state: the cache binds it. Made and bound on one
// thread; one forward at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "coluber/linear_attention.h"
#include "coluber/mamba_base.h"
#include "coluber/model.h"
#include "layers/linear.h"
#include "layers/weight_loader.h"

namespace coluber {

struct LinearAttentionConfig {
  int64_t hidden_size = 0;
  int64_t num_heads = 0;
  int64_t head_dim = 0;
  int64_t layer = 0;       // place in the whole stack
  int64_t num_layers = 0;  // of the whole stack
  double norm_eps = 1e-6;
};

// exp(-slope) is what a head's state keeps at a token: 2^(-8 (h + 1) / H) * (1 - layer / (L - 1 + 1e-5) + 1e-5), as
// transformers' minimax has it.
std::vector<float> lightning_slopes(int64_t num_heads, int64_t layer, int64_t num_layers);

class LinearAttention : public MambaBase {
 public:
  // `loader` is scoped to the layer ("model.layers.2.self_attn", which becomes its name); registers the layer in the
  // loader's configuration, which must outlive it. Throws Error(kInvalidConfig) where sizes do not fit together.
  LinearAttention(const LinearAttentionConfig& config, WeightLoader loader);

  std::vector<Shape> get_state_shape() const override;
  std::vector<DType> get_state_dtype() const override;
  MambaAttentionBackendEnum mamba_type() const override { return MambaAttentionBackendEnum::kLinear; }

  // x [T, hidden_size] to y [T, hidden_size], overwritten unless `accumulate`; y must not overlap x.
  void forward(const ForwardBatch& batch, const float* x, float* y, bool accumulate = false);

 private:
  void attend(const ForwardBatch& batch, const float* qkv, float* out) const;

  LinearAttentionConfig config_;
  const EngineConfig& engine_config_;
  Linear qkv_proj_, output_gate_, out_proj_;
  std::vector<float> norm_weight_;  // [H * D]
  std::vector<float> slopes_;       // [H]
};

}  // namespace coluber
