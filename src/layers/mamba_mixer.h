// SPDX-License-Identifier: Apache-2.0
//
// Mamba-1's mixer (Gu and Dao 2023), with Falcon-Mamba's and Jamba's RMS norms of dt, B and C and Zamba's heads:
//
//   x | z       = in_proj(h)                    x = silu(conv1d(x))
//   dt | B | C  = x_proj(x)                     each normed where mixer_rms_eps is set
//   y           = scan(x, dt_proj(dt), A, B, C, D) * silu(z)
//   out         = out_proj(y)
//
// Zamba splits the channels into heads, each with an x_proj, a dt_proj, B and C of its own, and stores rows of x and z
// in turn. States: the last W-1 inputs of the convolution, and h [C, N] in lane order kChannelBlock16 or, with heads,
// [H, C/H, N] in kHeadBlock16. Owns its weights, never its states: the cache binds them. Made and bound on one thread;
// one forward at a time.
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
  std::optional<double> mixer_rms_eps = std::nullopt;  // of the norms of dt, B and C; none without
  bool mixer_norm_weights = false;                     // Jamba: dt_layernorm, b_layernorm, c_layernorm
  int64_t num_heads = 0;                               // Zamba; 0: no heads and Mamba's tensors

  int64_t head_count() const noexcept { return num_heads == 0 ? 1 : num_heads; }
  int64_t head_channels() const noexcept { return intermediate_size / head_count(); }
  int64_t x_proj_width() const noexcept { return time_step_rank + 2 * state_size; }  // of one head
};

class StagedState;

class MambaMixer : public MambaBase {
 public:
  // `loader` is scoped to the mixer ("backbone.layers.2.mixer", which becomes its name); registers the layer in the
  // loader's configuration, which must outlive it. Throws Error(kInvalidConfig) where sizes do not fit together.
  MambaMixer(const MambaMixerConfig& config, WeightLoader loader);

  std::vector<Shape> get_state_shape() const override;
  std::vector<DType> get_state_dtype() const override;
  MambaAttentionBackendEnum mamba_type() const override { return MambaAttentionBackendEnum::kMamba1; }
  std::vector<StateLaneOrder> get_state_lane_order() const override;
  std::optional<int64_t> get_prefill_checkpoint_alignment() const override { return 1; }

  // x [T, hidden_size] to y [T, hidden_size], overwritten unless `accumulate`; y must not overlap x.
  void forward(const ForwardBatch& batch, const float* x, float* y, bool accumulate = false);

 private:
  void take_projections(WeightLoader& loader);
  void take_head_projections(WeightLoader& loader);
  void project_in(const ForwardBatch& batch, const float* x, float* xz) const;
  void convolve(const ForwardBatch& batch, const float* in, float* out) const;
  void norm_dt_b_c(const ForwardBatch& batch, float* dt_b_c) const;
  void scan_head(const ForwardBatch& batch, int64_t head, const float* z, const float* delta, const float* dt_b_c,
                 float* x, const StagedState& decoded, const StagedState& prefilled) const;
  void scan(const ForwardBatch& batch, const float* z, const float* delta, const float* dt_b_c, float* x) const;

  MambaMixerConfig config_;
  const EngineConfig& engine_config_;
  std::vector<Linear> in_proj_;           // x and z together, or one after the other
  std::vector<Linear> x_proj_, dt_proj_;  // of each head
  Linear out_proj_;
  FloatArray dt_norm_, b_norm_, c_norm_;  // [R], [N], [N] or empty
  FloatArray conv_weight_;                // [W, C]
  FloatArray conv_bias_;                  // [C] or empty
  FloatArray a_;                          // [H, C/H, N], each head in lane order, as the kernel takes it
  FloatArray d_;                          // [C]
};

}  // namespace coluber
