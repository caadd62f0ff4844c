// SPDX-License-Identifier: Apache-2.0
//
// The attention of the mamba_ssm package (its MHA): one projection gives q | k | v, a causal convolution without
// activation runs over all three, then softmax attention.
//
//   q | k | v = conv1d(in_proj(h))        out = out_proj(attention(rope(q), rope(k), v))
//
// Two layers with caches of their own: the convolution's last W-1 inputs, and paged keys and values. Owns its weights,
// never its states: the cache binds them. Made and bound on one thread; one forward at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "coluber/mamba_base.h"
#include "coluber/model.h"
#include "layers/linear.h"
#include "layers/projected_attention.h"
#include "layers/weight_loader.h"

namespace coluber {

// A causal convolution over channels, with the state it needs.
class CausalConv : public MambaBase {
 public:
  // Takes conv1d.weight [channels, 1, width] and conv1d.bias; "<loader's name>.conv1d" becomes its name.
  CausalConv(int64_t channels, int64_t width, WeightLoader loader);

  std::vector<Shape> get_state_shape() const override;
  std::vector<DType> get_state_dtype() const override;
  MambaAttentionBackendEnum mamba_type() const override { return MambaAttentionBackendEnum::kShortConv; }
  std::optional<int64_t> get_prefill_checkpoint_alignment() const override { return 1; }

  // y [T, channels] from x [T, channels], not overlapping.
  void forward(const ForwardBatch& batch, const float* x, float* y) const;

 private:
  int64_t channels_, width_;
  const EngineConfig& engine_config_;
  FloatArray weight_;  // [W, C]
  FloatArray bias_;    // [C]
};

struct ConvAttentionConfig {
  int64_t hidden_size = 0;
  SoftmaxAttentionConfig attention;
  int64_t conv_kernel = 0;  // 0: no convolution
  bool qkv_bias = false;
  bool out_bias = false;

  int64_t q_width() const noexcept { return attention.num_heads * attention.head_dim; }
  int64_t kv_width() const noexcept { return attention.num_kv_heads * attention.head_dim; }
  int64_t qkv_width() const noexcept { return q_width() + 2 * kv_width(); }
};

class ConvAttention {
 public:
  // `loader` is scoped to the layer ("backbone.layers.1.mixer"); registers its layers in the loader's configuration.
  // Throws Error(kInvalidConfig) where sizes do not fit together.
  ConvAttention(const ConvAttentionConfig& config, WeightLoader loader);

  const CausalConv* conv() const noexcept { return conv_.get(); }  // null without a convolution
  const ProjectedAttention& attention() const noexcept { return *attention_; }

  // x [T, hidden_size] to y [T, hidden_size], overwritten unless `accumulate`; y must not overlap x.
  void forward(const ForwardBatch& batch, const float* x, float* y, bool accumulate = false);

 private:
  ConvAttentionConfig config_;
  Linear in_proj_, out_proj_;
  std::unique_ptr<CausalConv> conv_;
  std::unique_ptr<ProjectedAttention> attention_;
};

}  // namespace coluber
