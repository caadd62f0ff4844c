// SPDX-License-Identifier: Apache-2.0
//
// RWKV-7's time mix, under BlinkDL's names of tensors or flash-linear-attention's:
//
//   r, k, v = receptance(mix_r(x)), key(mix_k(x)), value(mix_v(x))
//   w       = exp(-exp(-0.5) sigmoid(w0 + tanh(mix_w(x) w1) w2))        a = sigmoid(a0 + mix_a(x) a1 a2)
//   v       = v + (v_first - v) * sigmoid(v0 + mix_v(x) v1 v2)          v_first: the first layer's v
//   kk      = k * k_k, of length 1 a head                               k = k * (1 + (a - 1) * k_a)
//   out     = output((group_norm(wkv7(r, w, k, v, -kk, kk * a)) + (r . k . r_k) v) * (sigmoid(mix_g(x) g1) g2))
//
// States: a row's last token; [H, N, N], value by key, held in channel blocks. The backend's name is "wkv7".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "layers/rwkv_mixer.h"

namespace coluber {

enum class Rwkv7Names { kBlinkDl, kFla };

struct Rwkv7TimeMixConfig {
  int64_t hidden_size = 0;
  int64_t num_heads = 0;
  bool is_first = false;  // hands its values to the others
  double norm_eps = 64e-5;
  double key_eps = 0;  // under the root of |kk|
  Rwkv7Names names = Rwkv7Names::kBlinkDl;
};

class Rwkv7TimeMix final : public RwkvMixer {
 public:
  // As RwkvChannelMix's.
  Rwkv7TimeMix(const Rwkv7TimeMixConfig& config, WeightLoader loader);

  std::vector<Shape> get_state_shape() const override;
  std::vector<DType> get_state_dtype() const override;
  std::vector<StateLaneOrder> get_state_lane_order() const override;
  std::vector<std::string> get_state_names() const override { return {"att_shift", "recurrent"}; }
  std::string_view custom_backend() const noexcept override { return "wkv7"; }

  void forward(const ForwardBatch& batch, const float* x, float* y, float* carry) override;

 private:
  struct Values;
  RwkvLora take_lora(WeightLoader& loader, char letter, bool bias, std::optional<WkvMap> map) const;
  void take_mixes(WeightLoader& loader);
  void project(const ForwardBatch& batch, const float* x, const float* delta, const Values& values) const;
  void prepare(const ForwardBatch& batch, const Values& values, float* carry) const;
  void finish(const ForwardBatch& batch, const Values& values) const;
  int64_t head_dim() const noexcept { return config_.hidden_size / config_.num_heads; }

  Rwkv7TimeMixConfig config_;
  const EngineConfig& engine_config_;
  std::vector<float> mixes_;  // [6, D] in the order r, w, k, v, a, g
  Linear receptance_, key_, value_, output_;
  RwkvLora w_, a_, g_;
  std::optional<RwkvLora> v_;
  std::vector<float> k_k_, k_a_, r_k_, norm_weight_, norm_bias_;  // [D]
};

}  // namespace coluber
