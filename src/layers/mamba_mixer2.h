// SPDX-License-Identifier: Apache-2.0
//
// Mamba-2's mixer (Dao and Gu 2024), with the options of the hybrids that are built on it:
//
//   z | x | B | C | dt = in_proj(in_multiplier * h), each part times its multiplier
//   x | B | C          = silu(conv1d(x | B | C))
//   y                  = ssd(x, dt, A, B, C, D)   dt after bias and softplus within the time step limit, in prefill and
//                                                 step
//   out                = out_proj(gated(y, z))    a gate and an RMS norm in norm_groups groups of columns, as MixerGate
//                                                 says
//
// States: the last W-1 inputs of the convolution over x | B | C, and S [H, P, N]. With replay also a ring of the last
// inputs of S, whose steps are those of kernels/scan/ssd_replay.h. Owns its weights, never its states: the cache binds
// them. Made and bound on one thread; one forward at a time.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "coluber/mamba_base.h"
#include "cache/state_shape.h"
#include "coluber/model.h"
#include "kernels/scan/ssd_replay.h"
#include "layers/linear.h"
#include "layers/weight_loader.h"

namespace coluber {

enum class MixerGate {
  kGateThenNorm,  // rms_norm(y * silu(z)) * norm.weight
  kNormThenGate,  // rms_norm(y) * norm.weight * silu(z)
  kGateOnly,      // y * silu(z): there is no norm.weight
};

// What in_proj's outputs are multiplied with (Falcon-H1's ssm_multipliers).
struct MixerMultipliers {
  double z = 1, x = 1, b = 1, c = 1, dt = 1;
};

struct MambaMixer2Config {
  int64_t hidden_size = 0;
  int64_t num_heads = 0;
  int64_t head_dim = 0;
  int64_t state_size = 0;
  int64_t n_groups = 1;
  int64_t conv_kernel = 0;
  bool use_bias = false;      // in_proj
  bool use_out_bias = false;  // out_proj
  bool use_conv_bias = true;  // conv1d
  MixerGate gate = MixerGate::kGateThenNorm;
  double norm_eps = 1e-5;
  int64_t norm_groups = 1;  // some families norm the whole width whatever n_groups is, others by group
  double in_multiplier = 1;
  MixerMultipliers multipliers;
  double time_step_min = 0.0;
  double time_step_max = std::numeric_limits<double>::infinity();

  int64_t intermediate_size() const noexcept { return num_heads * head_dim; }
  int64_t conv_channels() const noexcept { return intermediate_size() + 2 * n_groups * state_size; }
  int64_t projected_width() const noexcept { return intermediate_size() + conv_channels() + num_heads; }
};

class MambaMixer2 : public MambaBase {
 public:
  // `loader` is scoped to the mixer ("backbone.layers.2.mixer", which becomes its name); registers the layer in the
  // loader's configuration, which must outlive it. Throws Error(kInvalidConfig) where sizes do not fit together.
  MambaMixer2(const MambaMixer2Config& config, WeightLoader loader);

  std::vector<Shape> get_state_shape() const override;
  std::vector<DType> get_state_dtype() const override;
  MambaAttentionBackendEnum mamba_type() const override { return MambaAttentionBackendEnum::kMamba2; }
  // The state after any token of a prefill is at hand: a chunk may end anywhere.
  std::optional<int64_t> get_prefill_checkpoint_alignment() const override { return 1; }
  bool supports_replayssm() const noexcept override { return true; }
  std::vector<Shape> get_replayssm_shape() const override;
  void fold_replayssm(int32_t slot, int32_t count, ThreadPool& pool) override;

  // x [T, hidden_size] to y [T, hidden_size], overwritten unless `accumulate`; y must not overlap x.
  void forward(const ForwardBatch& batch, const float* x, float* y, bool accumulate = false);

 private:
  Linear take_in_proj(WeightLoader& loader);
  void project_in(const ForwardBatch& batch, const float* x, float* projected) const;
  void convolve(const ForwardBatch& batch, const float* in, float* out) const;
  Mamba2StateSizes state_sizes() const;
  SsdArgs ssd_sizes() const;
  SsdRing ring() const;
  // The decodes, with replay.
  void replay(const ForwardBatch& batch, const SsdArgs& args) const;
  // Prefills begin with the states that their rings' inputs lead to.
  void fold_rings(const ForwardBatch& batch, SsdArgs args) const;
  void scan(const ForwardBatch& batch, const float* xbc, const float* dt, float* y) const;
  void gate(const ForwardBatch& batch, const float* z, float* y) const;

  MambaMixer2Config config_;
  const EngineConfig& engine_config_;
  FloatArray column_scale_, column_bias_;  // [projected_width], empty where all multipliers are 1
  Linear in_proj_, out_proj_;
  FloatArray conv_weight_;      // [W, conv_channels]
  FloatArray conv_bias_;        // [conv_channels] or empty
  FloatArray a_, d_, dt_bias_;  // [H]; a = -exp(A_log)
  FloatArray norm_weight_;      // [intermediate_size], empty without a norm
};

}  // namespace coluber
