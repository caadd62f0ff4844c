// SPDX-License-Identifier: Apache-2.0
//
// RWKV-4's time mix:
//
//   r, k, v = receptance(mix_r(x)), key(mix_k(x)), value(mix_v(x))        out = output(wkv4(sigmoid(r), k, v))
//
// States: a row's last token, and wkv4's numerator, denominator and maximum, all but the first float32 whatever the
// configuration says. The backend's name is "wkv4".
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "layers/rwkv_mixer.h"

namespace coluber {

struct Rwkv4TimeMixConfig {
  int64_t hidden_size = 0;
  int64_t attention_hidden_size = 0;
  // Names of the mixes for key, value and receptance, which weigh the current token.
  std::string mix_k = "time_mix_k", mix_v = "time_mix_v", mix_r = "time_mix_r";
};

class Rwkv4TimeMix final : public RwkvMixer {
 public:
  // As RwkvChannelMix's.
  Rwkv4TimeMix(const Rwkv4TimeMixConfig& config, WeightLoader loader);

  std::vector<Shape> get_state_shape() const override;
  std::vector<DType> get_state_dtype() const override;
  std::vector<std::string> get_state_names() const override;
  std::string_view custom_backend() const noexcept override { return "wkv4"; }

  void forward(const ForwardBatch& batch, const float* x, float* y, float* carry) override;

 private:
  Rwkv4TimeMixConfig config_;
  const EngineConfig& engine_config_;
  std::vector<float> mix_k_, mix_v_, mix_r_;  // [D], of the token before
  std::vector<float> decay_, first_;          // [A]
  Linear key_, value_, receptance_, output_;
};

}  // namespace coluber
