// SPDX-License-Identifier: Apache-2.0
//
// RWKV-5's and -6's time mix:
//
//   r, k, v, g = receptance(mix_r(x)), key(mix_k(x)), value(mix_v(x)), gate(mix_g(x))
//   w          = exp(-exp(time_decay))              RWKV-5; before 5.2 a decay and a bonus a head
//   w          = exp(-exp(time_decay + tanh(mix_w(x) decay_w1) decay_w2))      RWKV-6
//   out        = output(group_norm(wkv6(r, w, k, v)) * silu(g))                eps 64e-5, a group a head; RWKV-5.0 has
//   no g
//
// RWKV-6's mixes add what the token itself asks for: tanh(mix_x(x) maa_w1) in five parts, each times its maa_w2, in the
// order w, k, v, r, g. States: a row's last token; [H, N, N], key by value. The backend's name is "wkv6".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "layers/rwkv_mixer.h"

namespace coluber {

struct Rwkv6TimeMixConfig {
  int64_t hidden_size = 0;
  int64_t num_heads = 0;
  bool data_dependent = true;  // RWKV-6; false: RWKV-5
  bool gate = true;
  double norm_eps = 64e-5;
  // Names of the mixes: "time_maa_" + w, k, v, r, g, x; "time_mix_" + k, v, r, g, which weigh the current token.
  std::string mix_k, mix_v, mix_r, mix_g;
};

class Rwkv6TimeMix final : public RwkvMixer {
 public:
  // As RwkvChannelMix's.
  Rwkv6TimeMix(const Rwkv6TimeMixConfig& config, WeightLoader loader);

  std::vector<Shape> get_state_shape() const override;
  std::vector<DType> get_state_dtype() const override;
  std::vector<std::string> get_state_names() const override { return {"att_shift", "recurrent"}; }
  std::string_view custom_backend() const noexcept override { return "wkv6"; }

  void forward(const ForwardBatch& batch, const float* x, float* y, float* carry) override;

 private:
  struct Mixed;
  void load_own_mixes(WeightLoader& loader);
  void mix(const ForwardBatch& batch, const float* x, const float* delta, const Mixed& mixed) const;
  int64_t head_dim() const noexcept { return config_.hidden_size / config_.num_heads; }

  Rwkv6TimeMixConfig config_;
  const EngineConfig& engine_config_;
  std::vector<float> mix_k_, mix_v_, mix_r_, mix_g_;  // [D], of the token before
  std::vector<float> decay_;                          // [D] time_decay; RWKV-5: w itself
  std::vector<float> first_;                          // [D] the bonus u
  Linear receptance_, key_, value_, output_;
  std::optional<Linear> gate_;
  std::vector<float> norm_weight_, norm_bias_;  // [D]
  std::vector<float> mix_x_, mix_w_;            // [D], RWKV-6, as all below
  std::optional<Linear> mix_down_;              // [D] to five ranks
  std::vector<Linear> mix_up_;                  // a rank to [D], five times
  std::optional<RwkvLora> decay_lora_;
};

}  // namespace coluber
