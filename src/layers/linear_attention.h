// SPDX-License-Identifier: Apache-2.0
//
// Lightning attention as MiniMax and Bailing (Ring, Ling) have it: a state a head that forgets by a constant factor.
//
//   q | k | v = act(qkv_proj(h))      S = exp(-slope) S + k v^T       o = scale q^T S
//   out       = out_proj(rms_norm(o) * norm.weight * sigmoid(output_gate(h)))
//
// MiniMax: act is silu, the projection's rows come head by head (q, k, v of the first, ...), the norm spans all heads.
// Bailing: no activation, all queries' rows before all keys' and values'; an RMS norm of each head of q and k, then a
// rotation; the norm works in groups of heads. State: S [H, D, D], key by value. Owns its weights, never its state: the
// cache binds it. Made and bound on one thread; one forward at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "coluber/linear_attention.h"
#include "coluber/mamba_base.h"
#include "coluber/model.h"
#include "kernels/rope/rope.h"
#include "layers/linear.h"
#include "layers/norm.h"
#include "layers/rotation.h"
#include "layers/weight_loader.h"

namespace coluber {

// How the slope of head h in layer i of L follows from r, its rate.
enum class LightningSlopes {
  kTransformers,  // r = 2^(-8 (h + 1) / H), slope = r * (1 - i / (L - 1 + 1e-5) + 1e-5): transformers' minimax
  kAlibi,         // r as ALiBi has it for any number of heads, slope = r * (1 - i / (L - 1) + 1e-5): as trained
};

struct LinearAttentionConfig {
  int64_t hidden_size = 0;
  int64_t num_heads = 0;
  int64_t head_dim = 0;
  int64_t layer = 0;       // place in the whole stack
  int64_t num_layers = 0;  // of the whole stack
  double norm_eps = 1e-6;  // of every norm
  LightningSlopes slopes = LightningSlopes::kTransformers;
  bool qkv_by_head = true;
  bool silu = true;
  double scale = 1.0;  // of queries
  bool qkv_bias = false;
  bool out_bias = false;
  bool qk_norm = false;                           // needs !qkv_by_head
  std::optional<RopeConfig> rope = std::nullopt;  // needs !qkv_by_head
  int64_t norm_groups = 1;
  // Tensor names below the layer's prefix, without ".weight".
  std::string qkv_proj = "qkv_proj";
  std::string output_gate = "output_gate";
  std::string out_proj = "out_proj";
  std::string norm = "norm";
  std::string q_norm = "q_norm";
  std::string k_norm = "k_norm";
};

// exp(-slope) is what a head's state keeps at a token.
std::vector<float> lightning_slopes(int64_t num_heads, int64_t layer, int64_t num_layers,
                                    LightningSlopes kind = LightningSlopes::kTransformers);

class LinearAttention : public MambaBase {
 public:
  // `loader` is scoped to the layer ("model.layers.2.self_attn", which becomes its name); registers the layer in the
  // loader's configuration, which must outlive it. Throws Error(kInvalidConfig) where sizes do not fit together.
  LinearAttention(const LinearAttentionConfig& config, WeightLoader loader);

  std::vector<Shape> get_state_shape() const override;
  std::vector<DType> get_state_dtype() const override;
  MambaAttentionBackendEnum mamba_type() const override { return MambaAttentionBackendEnum::kLinear; }
  std::optional<int64_t> get_prefill_checkpoint_alignment() const override { return 1; }

  // x [T, hidden_size] to y [T, hidden_size], overwritten unless `accumulate`; y must not overlap x.
  void forward(const ForwardBatch& batch, const float* x, float* y, bool accumulate = false);

 private:
  int64_t inner() const { return config_.num_heads * config_.head_dim; }
  void project(const ForwardBatch& batch, const float* x, float* qkv) const;
  void finish(const ForwardBatch& batch, const float* gate, float* out) const;

  LinearAttentionConfig config_;
  const EngineConfig& engine_config_;
  Rotation rotation_;
  std::vector<Linear> qkv_;  // one by head, or q, k and v
  Linear output_gate_, out_proj_;
  std::optional<RmsNorm> q_norm_, k_norm_;
  FloatArray norm_weight_;  // [H * D]
  FloatArray slopes_;       // [H]
};

}  // namespace coluber
