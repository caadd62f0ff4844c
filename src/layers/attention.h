// SPDX-License-Identifier: Apache-2.0
//
// Causal softmax attention with grouped query heads, as most families have it: projections, optional RMS norm of
// queries and keys, optional rotary embedding, then layers/softmax_attention.h, an optional sigmoid gate on what comes
// out, and the output projection. Owns its weights, never its pages. `forward` takes rows in any order and reads the
// step's FullAttentionMetadata. Made and bound on one thread; one forward at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "coluber/model.h"
#include "kernels/rope/rope.h"
#include "layers/linear.h"
#include "layers/norm.h"
#include "layers/softmax_attention.h"
#include "layers/weight_loader.h"

namespace coluber {

enum class OutputGate {
  kNone,
  kInQuery,     // q_proj gives each head's query, then its gate (Qwen3-Next)
  kProjection,  // gate_proj
};

struct AttentionConfig {
  int64_t hidden_size = 0;  // of the input
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  std::optional<RopeConfig> rope = std::nullopt;     // none: no positions (some hybrids); rotary_dim 0: the whole head
  std::optional<double> qk_norm_eps = std::nullopt;  // RMS norm of q and k, before the rotation
  bool qkv_bias = false;
  bool out_bias = false;
  // Tensor names below the layer's prefix, without ".weight".
  std::string q_proj = "q_proj";
  std::string k_proj = "k_proj";
  std::string v_proj = "v_proj";
  std::string out_proj = "o_proj";
  std::string q_norm = "q_norm";
  std::string k_norm = "k_norm";
  std::string qkv_proj = "";  // instead of the three: one weight, rows of q, then k, then v
  std::string gate_proj = "g_proj";
  int64_t output_size = 0;                     // 0: hidden_size
  bool qk_norm_whole = false;                  // over all heads at once instead of each
  bool qk_norm_weight = true;                  // false: nothing is learnt
  float qk_norm_weight_offset = 0;             // 1 where the weights are centred on zero
  double key_multiplier = 1;                   // of k, before norm and rotation
  std::optional<double> scale = std::nullopt;  // of a query times a key; none: head_dim^-0.5
  int64_t sliding_window = 0;                  // positions a query sees, its own among them; 0: all
  OutputGate gate = OutputGate::kNone;
};

class Attention : public SoftmaxAttention {
 public:
  // `loader` is scoped to the layer ("model.layers.2.self_attn", which becomes its name); registers the layer in the
  // loader's configuration. Throws Error(kInvalidConfig) where sizes do not fit together. `selector` (or null) makes
  // the attention sparse.
  Attention(const AttentionConfig& config, WeightLoader loader, std::unique_ptr<KeySelector> selector = nullptr);

  // x [T, hidden_size] to y [T, output_size], overwritten unless `accumulate`; y must not overlap x.
  void forward(const ForwardBatch& batch, const float* x, float* y, bool accumulate = false);

 private:
  void take_projections(WeightLoader loader);
  void take_norms(WeightLoader loader);
  // q [T, Hq, D], normed; the gate, if any, lies where `gate_stride` says: head h of token t at (t * Hq + h) * stride.
  struct Gate {
    const float* values = nullptr;
    int64_t stride = 0;
  };
  Gate project_queries(const ForwardBatch& batch, const float* x, float* q) const;
  void project_keys_and_values(const ForwardBatch& batch, const float* x, float* k, float* v) const;

  AttentionConfig config_;
  std::optional<Linear> q_proj_, k_proj_, v_proj_, gate_proj_, out_proj_;
  std::optional<RmsNorm> q_norm_, k_norm_;
};

}  // namespace coluber
