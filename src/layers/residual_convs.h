// SPDX-License-Identifier: Apache-2.0
//
// Several short causal convolutions of one block, each y = x + conv(x) without bias or activation, wherever the block
// wants them (Inkling: over keys, values and what either half gives). One layer of the cache keeps the last W-1 inputs
// of all, as states "conv.0", "conv.1", ... Owns its weights, never its state: the cache binds it. Made and bound on
// one thread; one forward at a time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coluber/mamba_base.h"
#include "coluber/model.h"
#include "layers/weight_loader.h"

namespace coluber {

struct ResidualConvConfig {
  std::string weight;  // name of a tensor [channels, 1, W] below the loader
  int64_t channels = 0;
};

class ResidualConvs : public MambaBase {
 public:
  // Registers the layer as `name` in the loader's configuration, which must outlive it. Throws Error(kInvalidConfig)
  // where sizes make no sense.
  ResidualConvs(const std::vector<ResidualConvConfig>& convs, int64_t conv_kernel, const std::string& name,
                WeightLoader loader);

  std::vector<Shape> get_state_shape() const override;
  std::vector<DType> get_state_dtype() const override;
  std::vector<std::string> get_state_names() const override;
  MambaAttentionBackendEnum mamba_type() const override { return MambaAttentionBackendEnum::kShortConv; }
  std::optional<int64_t> get_prefill_checkpoint_alignment() const override { return 1; }

  // x [T, channels] to y [T, channels] by convolution `index`, each once a step; y must not overlap x.
  void forward(const ForwardBatch& batch, size_t index, const float* x, float* y) const;

 private:
  struct Conv {
    int64_t channels;
    std::vector<float> weight;  // [W, C], the residual in the last tap
  };
  const EngineConfig& engine_config_;
  int64_t conv_kernel_;
  std::vector<Conv> convs_;
  std::vector<int64_t> state_elements_;  // of each
};

}  // namespace coluber
