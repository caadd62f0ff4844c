// SPDX-License-Identifier: Apache-2.0
//
// ZAYA's compressed convolutional attention (arXiv 2510.04476). Queries and keys run through two causal convolutions,
// one of each channel and one inside each head, and keep a path beside them; half of the values come from the token
// before:
//
//   c = conv_heads(conv_channels(q0 | k0))     q0, k0 = projections of x       zeros before a sequence's first token
//   q = c_q + r     r_h = (q0_h + k0_g(h)) / 2          k = c_k + mean of r over the queries of each key head
//   q, k normed to length sqrt(head_dim), k times a learnt factor a head       v = current(x_t) | delayed(x_t-1)
//
// `CcaProjection` holds the recurrent part: states are the last inputs of both convolutions [W0 + W1 - 2, C] and the
// last token's delayed half. `CcaAttention` rotates and attends. They own weights, never state or pages: the cache
// binds them. Made and bound on one thread; one forward at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "coluber/attention_metadata.h"
#include "coluber/mamba_base.h"
#include "coluber/model.h"
#include "kernels/rope/rope.h"
#include "layers/linear.h"
#include "layers/norm.h"
#include "layers/softmax_attention.h"
#include "layers/weight_loader.h"

namespace coluber {

struct CcaConfig {
  int64_t hidden_size = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t channel_kernel = 0;  // cca_time0
  int64_t head_kernel = 0;     // cca_time1
  bool bias = false;           // of the projections
  RopeConfig rope;
  int64_t sliding_window = 0;  // 0: none

  int64_t q_width() const noexcept { return num_heads * head_dim; }
  int64_t kv_width() const noexcept { return num_kv_heads * head_dim; }
  int64_t channels() const noexcept { return q_width() + kv_width(); }
  int64_t memory() const noexcept {
    return channel_kernel + head_kernel - 2;
  }  // tokens that the convolutions look back
};

class CcaProjection : public MambaBase {
 public:
  // `loader` is scoped to the projection ("model.layers.0.self_attn.qkv_proj", which becomes its name); registers the
  // layer in the loader's configuration, which must outlive it. Throws Error(kInvalidConfig) where sizes do not fit.
  CcaProjection(const CcaConfig& config, WeightLoader loader);

  std::vector<Shape> get_state_shape() const override;
  std::vector<DType> get_state_dtype() const override;
  std::vector<std::string> get_state_names() const override { return {"conv", "recurrent"}; }
  std::vector<StateSplit> get_state_split(const std::vector<Shape>& whole) const override;
  MambaAttentionBackendEnum mamba_type() const override { return MambaAttentionBackendEnum::kShortConv; }
  std::optional<int64_t> get_prefill_checkpoint_alignment() const override { return 1; }

  // x [T, hidden_size] to q [T, Hq, D], k [T, Hkv, D] (neither normed nor rotated) and v [T, Hkv, D].
  void forward(const ForwardBatch& batch, const float* x, float* q, float* k, float* v) const;

 private:
  // A step's rows with what they remember before each: row r of the step begins at `first[r]` of the longer ones.
  struct LongRows {
    float* values = nullptr;    // [N, C]
    int32_t* starts = nullptr;  // [R+1], multiples of rows
    int64_t rows = 0;
    int64_t tokens = 0;  // N
  };
  LongRows remember(const ForwardBatch& batch, const float* qk) const;
  void convolve_channels(const ForwardBatch& batch, const LongRows& in, float* out) const;
  void convolve_heads(const ForwardBatch& batch, const float* in, int64_t rows, float* out) const;
  void mix(const LongRows& rows, const float* convolved, const float* qk, float* q, float* k) const;
  void delay_values(const ForwardBatch& batch, const float* x, float* v) const;

  CcaConfig config_;
  const EngineConfig& engine_config_;
  std::vector<float> delayed_bias_;  // what the first token's values take from before it; v_delayed_ fills it
  Linear q_proj_, k_proj_, v_current_, v_delayed_;
  FloatArray channel_weight_;        // [W0, C]
  std::vector<float> channel_bias_;  // [C]
  std::vector<Linear> head_taps_;    // [W1][Hq + Hkv], the bias with the last tap
};

class CcaAttention : public SoftmaxAttention {
 public:
  // `loader` is scoped to the layer ("model.layers.0.self_attn").
  CcaAttention(const CcaConfig& config, WeightLoader loader);

  const CcaProjection& projection() const noexcept { return projection_; }

  // x [T, hidden_size] to y [T, hidden_size], overwritten; y must not overlap x.
  void forward(const ForwardBatch& batch, const float* x, float* y);

 private:
  CcaConfig config_;
  CcaProjection projection_;
  RmsNorm length_;                // to length sqrt(head_dim)
  std::vector<float> key_scale_;  // [Hkv]
  Linear out_proj_;
};

}  // namespace coluber
