// SPDX-License-Identifier: Apache-2.0
//
// The recurrent block of Griffin and RecurrentGemma:
//
//   y_branch = f(linear_y(x))      x_branch = rg_lru(conv(linear_x(x)))      out = linear_out(x_branch * y_branch)
//
// The gates of the RG-LRU (kernels/rg_lru) are products with one square matrix a head. States: the last W-1 inputs of
// the convolution, and the unit's [C]. Owns its weights, never its state: the cache binds it. Made and bound on one
// thread; one forward at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "coluber/mamba_base.h"
#include "coluber/model.h"
#include "kernels/moe/activation.h"
#include "layers/linear.h"
#include "layers/weight_loader.h"

namespace coluber {

class RecurrentStep;

struct RgLruConfig {
  int64_t hidden_size = 0;
  int64_t lru_width = 0;
  int64_t num_heads = 0;    // blocks of the gates
  int64_t conv_kernel = 0;  // conv1d_width
  Activation activation = Activation::kGeluTanh;
};

class RgLru : public MambaBase {
 public:
  // `loader` is scoped to the layer ("model.layers.0.temporal_block", which becomes its name); registers the layer in
  // the loader's configuration, which must outlive it. Throws Error(kInvalidConfig) where sizes do not fit together.
  RgLru(const RgLruConfig& config, WeightLoader loader);

  std::vector<Shape> get_state_shape() const override;
  std::vector<DType> get_state_dtype() const override;
  std::vector<std::string> get_state_names() const override { return {"conv", "recurrent"}; }
  std::vector<StateSplit> get_state_split(const std::vector<Shape>& whole) const override;
  MambaAttentionBackendEnum mamba_type() const override { return MambaAttentionBackendEnum::kCustom; }
  std::string_view custom_backend() const noexcept override { return "rg_lru"; }
  std::optional<int64_t> get_prefill_checkpoint_alignment() const override { return 1; }

  // x [T, hidden_size] to y [T, hidden_size], overwritten unless `accumulate`; y must not overlap x.
  void forward(const ForwardBatch& batch, const float* x, float* y, bool accumulate = false);

 private:
  void convolve(const ForwardBatch& batch, const float* in, float* out) const;
  void recur(const ForwardBatch& batch, const RecurrentStep& step, const float* input_gate, const float* recurrent_gate,
             float* x) const;

  RgLruConfig config_;
  const EngineConfig& engine_config_;
  Linear linear_y_, linear_x_, linear_out_;
  FloatArray conv_weight_;                           // [W, C]
  std::vector<float> conv_bias_;                     // [C]
  std::vector<Linear> input_gate_, recurrent_gate_;  // [heads]
  std::vector<float> log_decay_;                     // [C]
};

}  // namespace coluber
