// SPDX-License-Identifier: Apache-2.0
//
// xLSTM's layer of matrix memories:
//
//   q, k, v, o = x in four projections, or one        i, f = gates of x, two or one
//   out        = out_proj(head_norm(mlstm(q, k, v, i, f)) * sigmoid(o))
//
// States: the memory [H, K, V], its normaliser [H, K] and the exponent of both [H, 1]; the last two are float32
// whatever the configuration says. The backend's name is "mlstm". Owns its weights, never its states: the cache binds
// them. Made and bound on one thread; one forward at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "coluber/mamba_base.h"
#include "coluber/model.h"
#include "layers/linear.h"
#include "layers/weight_loader.h"

namespace coluber {

struct MlstmConfig {
  int64_t hidden_size = 0;
  int64_t num_heads = 0;
  int64_t qk_dim = 0;  // of all heads
  int64_t v_dim = 0;
  bool use_bias = false;  // of the projections and the norm; the gates have theirs
  bool fused = false;     // one weight of q, k, v and o, one of i and f
  double gate_soft_cap = 15;
  double eps = 1e-6;       // beside the divisor
  double norm_eps = 1e-6;  // of the norm
};

class Mlstm final : public MambaBase {
 public:
  // `loader` is scoped to the layer ("backbone.blocks.2.mlstm_layer", which becomes its name); registers the layer in
  // the loader's configuration, which must outlive it. Throws Error(kInvalidConfig) where sizes do not fit together.
  Mlstm(const MlstmConfig& config, WeightLoader loader);

  std::vector<Shape> get_state_shape() const override;
  std::vector<DType> get_state_dtype() const override;
  std::vector<std::string> get_state_names() const override { return {"c", "n", "m"}; }
  MambaAttentionBackendEnum mamba_type() const override { return MambaAttentionBackendEnum::kCustom; }
  std::string_view custom_backend() const noexcept override { return "mlstm"; }
  std::optional<int64_t> get_prefill_checkpoint_alignment() const override { return 1; }

  // x [T, hidden_size] to y [T, hidden_size], overwritten unless `accumulate`; y must not overlap x.
  void forward(const ForwardBatch& batch, const float* x, float* y, bool accumulate = false) const;

 private:
  int64_t key_dim() const noexcept { return config_.qk_dim / config_.num_heads; }
  int64_t value_dim() const noexcept { return config_.v_dim / config_.num_heads; }
  int64_t qkvo_width() const noexcept { return 2 * config_.qk_dim + 2 * config_.v_dim; }
  void recall(const ForwardBatch& batch, const float* qkvo, const float* gates, float* out) const;

  MlstmConfig config_;
  const EngineConfig& engine_config_;
  std::vector<Linear> qkvo_;   // side by side: four, or one
  std::vector<Linear> gates_;  // two, or one
  Linear out_proj_;
  std::vector<float> norm_weight_, norm_bias_;  // [v_dim]; the bias may be empty
};

}  // namespace coluber
