// SPDX-License-Identifier: Apache-2.0
//
// LFM2's gated short convolution:
//
//   B | C | x = in_proj(h)        u = B * x        out = out_proj(C * conv(u))        no activation
//
// State: the last W-1 values of u. Owns its weights, never its state: the cache binds it. Made and bound on one thread;
// one forward at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "coluber/mamba_base.h"
#include "coluber/model.h"
#include "layers/linear.h"
#include "layers/weight_loader.h"

namespace coluber {

struct ShortConvConfig {
  int64_t hidden_size = 0;
  int64_t conv_kernel = 0;  // conv_L_cache
  bool use_bias = false;    // in_proj, conv and out_proj
};

class ShortConv : public MambaBase {
 public:
  // `loader` is scoped to the layer ("model.layers.2.conv", which becomes its name); registers the layer in the
  // loader's configuration, which must outlive it. Throws Error(kInvalidConfig) where sizes do not fit together.
  ShortConv(const ShortConvConfig& config, WeightLoader loader);

  std::vector<Shape> get_state_shape() const override;
  std::vector<DType> get_state_dtype() const override;
  MambaAttentionBackendEnum mamba_type() const override { return MambaAttentionBackendEnum::kShortConv; }
  std::optional<int64_t> get_prefill_checkpoint_alignment() const override { return 1; }

  // x [T, hidden_size] to y [T, hidden_size], overwritten unless `accumulate`; y must not overlap x.
  void forward(const ForwardBatch& batch, const float* x, float* y, bool accumulate = false);

 private:
  ShortConvConfig config_;
  const EngineConfig& engine_config_;
  Linear in_proj_, out_proj_;
  FloatArray conv_weight_;  // [W, D]
  FloatArray conv_bias_;    // [D] or empty
};

}  // namespace coluber
