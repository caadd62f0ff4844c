// SPDX-License-Identifier: Apache-2.0
//
// Inkling's attention: no rotation; every query adds a bias of its own to the scores of the last positions,
//
//   bias[t, h, distance] = r[t, h] . profiles[:, distance]          r = r_proj(x), distance < extent
//
// keys and values run through short convolutions, queries and keys are normed by head and scores divided by the head
// dim. In layers without a window, queries and biases grow slowly with the position p: by 1 + alpha * ln(max(1, (p + 1)
// / floor)). Owns its weights, never its pages. Made and bound on one thread; one forward at a time.
#pragma once

#include <cstdint>
#include <optional>

#include "coluber/model.h"
#include "layers/linear.h"
#include "layers/norm.h"
#include "layers/residual_convs.h"
#include "layers/softmax_attention.h"
#include "layers/weight_loader.h"

namespace coluber {

struct RelativeAttentionConfig {
  int64_t hidden_size = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t relative_dim = 0;    // d_rel
  int64_t extent = 0;          // positions that have a bias
  int64_t sliding_window = 0;  // 0: none
  double norm_eps = 0;
  std::optional<double> log_floor = std::nullopt;  // none: queries do not grow
  double log_alpha = 0;
};

class RelativeAttention : public SoftmaxAttention {
 public:
  // `loader` is scoped to the layer ("model.layers.0.self_attn"). `convs` outlives it.
  RelativeAttention(const RelativeAttentionConfig& config, WeightLoader loader, const ResidualConvs& convs,
                    size_t key_conv, size_t value_conv);

  // x [T, hidden_size] to y [T, hidden_size], overwritten; y must not overlap x.
  void forward(const ForwardBatch& batch, const float* x, float* y);

 private:
  void grow(const ForwardBatch& batch, float* q, float* relative) const;

  RelativeAttentionConfig config_;
  const ResidualConvs& convs_;
  size_t key_conv_, value_conv_;
  Linear q_proj_, k_proj_, v_proj_, r_proj_, out_proj_;
  RmsNorm q_norm_, k_norm_;
  Linear profiles_;  // [extent, relative_dim], the farthest first
};

}  // namespace coluber
