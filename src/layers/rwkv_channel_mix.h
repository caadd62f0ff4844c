// SPDX-License-Identifier: Apache-2.0
//
// RWKV's channel mix, all versions:
//
//   out = value(relu(key(mix_k(x)))^2) * sigmoid(receptance(mix_r(x)))        RWKV-7 has no receptance
//
// mix_j(x) = x + (the token before - x) * mu_j. State: a row's last token. The backend's name is "token_shift".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "layers/rwkv_mixer.h"

namespace coluber {

struct RwkvChannelMixConfig {
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  std::string mix_k = "x_k";
  std::string mix_r;                // empty: no receptance
  bool mix_weighs_current = false;  // the stored weights are of the token, not of the one before (up to RWKV-5)
};

class RwkvChannelMix final : public RwkvMixer {
 public:
  // `loader` is scoped to the layer ("blocks.2.ffn", which becomes its name); registers the layer in the loader's
  // configuration, which must outlive it. Throws Error(kInvalidConfig) where sizes do not fit together.
  RwkvChannelMix(const RwkvChannelMixConfig& config, WeightLoader loader);

  std::vector<Shape> get_state_shape() const override { return {Shape{config_.hidden_size}}; }
  std::vector<DType> get_state_dtype() const override;
  std::vector<std::string> get_state_names() const override { return {"ffn_shift"}; }
  std::string_view custom_backend() const noexcept override { return "token_shift"; }

  void forward(const ForwardBatch& batch, const float* x, float* y, float* carry) override;

 private:
  RwkvChannelMixConfig config_;
  const EngineConfig& engine_config_;
  std::vector<float> mix_k_, mix_r_;  // [D], of the token before
  Linear key_, value_;
  std::optional<Linear> receptance_;
};

// A stored mix as the weight of the token before.
std::vector<float> take_mix(WeightLoader& loader, std::string_view name, int64_t size, bool weighs_current);

}  // namespace coluber
