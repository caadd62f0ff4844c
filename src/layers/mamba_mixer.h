// SPDX-License-Identifier: Apache-2.0
//
// Mamba-1's mixer (Gu and Dao 2023), with Falcon-Mamba's RMS norms of dt, B and C:
//
//   x | z       = in_proj(h)                    x = silu(conv1d(x))
//   dt | B | C  = x_proj(x)                     each normed without weight where mixer_rms_eps is set
//   y           = scan(x, dt_proj(dt), A, B, C, D) * silu(z)
//   out         = out_proj(y)
//
// States: the last W-1 inputs of the convolution, and h [C, N] in lane order kChannelBlock16. Owns its weights, never
// its states: the cache binds them. Made and bound on one thread; one forward at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "coluber/mamba_base.h"
#include "coluber/model.h"
#include "layers/linear.h"
#include "layers/weight_loader.h"

namespace coluber {

struct MambaMixerConfig {
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t state_size = 0;
  int64_t conv_kernel = 0;
  int64_t time_step_rank = 0;
  bool use_bias = false;                               // in_proj and out_proj
  bool use_conv_bias = true;                           // conv1d
  std::optional<double> mixer_rms_eps = std::nullopt;  // Falcon-Mamba
};

class MambaMixer : public MambaBase {
 public:
  // `loader` is scoped to the mixer ("backbone.layers.2.mixer", which becomes its name); registers the layer in the
  // loader's configuration, which must outlive it. Throws Error(kInvalidConfig) where sizes do not fit together.
  MambaMixer(const MambaMixerConfig& config, WeightLoader loader);

  std::vector<Shape> get_state_shape() const override;
  std::vector<DType> get_state_dtype() const override;
  MambaAttentionBackendEnum mamba_type() const override { return MambaAttentionBackendEnum::kMamba1; }
  std::vector<StateLaneOrder> get_state_lane_order() const override;

  // x [T, hidden_size] to y [T, hidden_size], overwritten unless `accumulate`; y must not overlap x.
  void forward(const ForwardBatch& batch, const float* x, float* y, bool accumulate = false);

 private:
  void convolve(const ForwardBatch& batch, const float* in, float* out) const;
  void scan(const ForwardBatch& batch, const float* z, const float* delta, const float* bc, float* x) const;

  MambaMixerConfig config_;
  const EngineConfig& engine_config_;
  Linear in_proj_, x_proj_, dt_proj_, out_proj_;
  std::vector<float> conv_weight_;  // [W, C]
  std::vector<float> conv_bias_;    // [C] or empty
  std::vector<float> a_;            // [C, N] in lane order, as the kernel takes it
  std::vector<float> d_;            // [C]
};

}  // namespace coluber
