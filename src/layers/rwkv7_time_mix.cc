// SPDX-License-Identifier: Apache-2.0
#include "layers/rwkv7_time_mix.h"

#include <algorithm>

#include "base/error.h"
#include "cache/state_shape.h"
#include "kernels/wkv/wkv7.h"
#include "layers/recurrent_step.h"
#include "tensor/workspace.h"

namespace coluber {
namespace {

const RegisterRecurrentBackend kBackend("wkv7");

constexpr int64_t kMixes = 6;
constexpr char kMixLetters[kMixes] = {'r', 'w', 'k', 'v', 'a', 'g'};
enum Mix { kMixR, kMixW, kMixK, kMixV, kMixA, kMixG };

Rwkv7TimeMixConfig checked(const Rwkv7TimeMixConfig& config, const WeightLoader& loader) {
  SizeChecks checks;
  expect_heads(checks, config.hidden_size, config.num_heads);
  checks.finish("RWKV-7 time mix", loader);
  return config;
}

const char* projection(const Rwkv7TimeMixConfig& config, char letter) {
  const bool fla = config.names == Rwkv7Names::kFla;
  switch (letter) {
    case 'r':
      return fla ? "r_proj" : "receptance";
    case 'k':
      return fla ? "k_proj" : "key";
    case 'v':
      return fla ? "v_proj" : "value";
    default:
      return fla ? "o_proj" : "output";
  }
}

}  // namespace

struct Rwkv7TimeMix::Values {
  float* mixed[kMixes];  // [T, D], as all
  float *r, *w, *k, *v, *a, *kk, *gate, *v_gate, *out;
};

Rwkv7TimeMix::Rwkv7TimeMix(const Rwkv7TimeMixConfig& config, WeightLoader loader)
    : RwkvMixer(layer_name_of(loader)),
      config_(checked(config, loader)),
      engine_config_(loader.config()),
      receptance_(loader, projection(config_, 'r'), config_.hidden_size, config_.hidden_size, false),
      key_(loader, projection(config_, 'k'), config_.hidden_size, config_.hidden_size, false),
      value_(loader, projection(config_, 'v'), config_.hidden_size, config_.hidden_size, false),
      output_(loader, projection(config_, 'o'), config_.hidden_size, config_.hidden_size, false),
      w_(take_lora(loader, 'w', true, WkvMap::kTanh)),
      a_(take_lora(loader, 'a', true, std::nullopt)),
      g_(take_lora(loader, 'g', false, WkvMap::kSigmoid)) {
  const int64_t hidden = config_.hidden_size;
  const std::string norm = config_.names == Rwkv7Names::kFla ? "g_norm" : "ln_x";
  take_mixes(loader);
  if (!config_.is_first) v_ = take_lora(loader, 'v', true, std::nullopt);
  k_k_ = take_vector(loader, "k_k", hidden);
  k_a_ = take_vector(loader, "k_a", hidden);
  r_k_ = take_vector(loader, "r_k", hidden);
  norm_weight_ = take_vector(loader, norm + ".weight", hidden);
  norm_bias_ = take_vector(loader, norm + ".bias", hidden);
  loader.config().register_layer(*this);
}

RwkvLora Rwkv7TimeMix::take_lora(WeightLoader& loader, char letter, bool bias, std::optional<WkvMap> map) const {
  const int64_t hidden = config_.hidden_size;
  const std::string name(1, letter);
  if (config_.names == Rwkv7Names::kFla) return RwkvLora::sequential(loader, name + "_lora", bias, hidden, hidden, map);
  return RwkvLora::transposed(loader, name + "1", name + "2", bias ? name + "0" : std::string(), hidden, hidden, map);
}

// Older checkpoints of flash-linear-attention hold one tensor of all six.
void Rwkv7TimeMix::take_mixes(WeightLoader& loader) {
  const int64_t hidden = config_.hidden_size;
  if (loader.has("x_x")) {
    mixes_ = take_vector(loader, "x_x", kMixes * hidden);
    return;
  }
  for (const char letter : kMixLetters) {
    const std::vector<float> mix = take_vector(loader, std::string("x_") + letter, hidden);
    mixes_.insert(mixes_.end(), mix.begin(), mix.end());
  }
}

std::vector<Shape> Rwkv7TimeMix::get_state_shape() const {
  return with_state_scales(std::vector{Shape{config_.hidden_size}, Shape{config_.num_heads, head_dim(), head_dim()}},
                           get_state_dtype());
}

std::vector<DType> Rwkv7TimeMix::get_state_dtype() const {
  return with_state_scales({conv_state_dtype(engine_config_), recurrent_state_dtype(engine_config_)});
}

std::vector<StateLaneOrder> Rwkv7TimeMix::get_state_lane_order() const {
  return {StateLaneOrder::kContract, StateLaneOrder::kHeadBlock16};
}

void Rwkv7TimeMix::project(const ForwardBatch& batch, const float* x, const float* delta, const Values& s) const {
  const int64_t tokens = batch.num_tokens(), hidden = config_.hidden_size;
  TokenMixArgs mix;
  mix.x = x;
  mix.delta = delta;
  mix.mixes = kMixes;
  mix.tokens = tokens;
  mix.cols = hidden;
  for (int64_t j = 0; j < kMixes; ++j) {
    mix.mu[j] = mixes_.data() + j * hidden;
    mix.out[j] = s.mixed[j];
  }
  token_mix()(mix, batch);
  receptance_.forward(batch, s.mixed[kMixR], tokens, s.r);
  key_.forward(batch, s.mixed[kMixK], tokens, s.k);
  value_.forward(batch, s.mixed[kMixV], tokens, s.v);
  w_.forward(batch, s.mixed[kMixW], s.w, WkvMap::kBoundedDecay);
  a_.forward(batch, s.mixed[kMixA], s.a, WkvMap::kSigmoid);
  g_.forward(batch, s.mixed[kMixG], s.gate);
  if (v_) v_->forward(batch, s.mixed[kMixV], s.v_gate, WkvMap::kSigmoid);
}

void Rwkv7TimeMix::prepare(const ForwardBatch& batch, const Values& s, float* carry) const {
  const int64_t tokens = batch.num_tokens();
  COLUBER_CHECK(carry != nullptr, "layer '{}' needs the first layer's values", layer_name());
  if (!v_) std::copy_n(s.v, tokens * config_.hidden_size, carry);
  Wkv7PrepareArgs args;
  args.k = s.k;
  args.a = s.a;
  args.kk = s.kk;
  args.k_k = k_k_.data();
  args.k_a = k_a_.data();
  args.eps = static_cast<float>(config_.key_eps);
  args.v = s.v;
  args.v_gate = v_ ? s.v_gate : nullptr;
  args.v_first = carry;
  args.tokens = tokens;
  args.num_heads = config_.num_heads;
  args.head_dim = head_dim();
  wkv7_prepare()(args, batch);
}

void Rwkv7TimeMix::finish(const ForwardBatch& batch, const Values& s) const {
  HeadNormArgs norm;
  norm.x = norm.y = s.out;
  norm.weight = norm_weight_.data();
  norm.bias = norm_bias_.data();
  norm.eps = static_cast<float>(config_.norm_eps);
  norm.r = s.r;
  norm.k = s.k;
  norm.v = s.v;
  norm.r_k = r_k_.data();
  norm.gate = s.gate;
  norm.gate_stride = config_.hidden_size;
  norm.gate_kind = HeadGate::kPlain;
  norm.tokens = batch.num_tokens();
  norm.num_heads = config_.num_heads;
  norm.head_dim = head_dim();
  head_norm()(norm, batch);
}

void Rwkv7TimeMix::forward(const ForwardBatch& batch, const float* x, float* y, float* carry) {
  const int64_t tokens = batch.num_tokens(), hidden = config_.hidden_size;
  const RecurrentStep step(*this, batch, {hidden, hidden * head_dim()});
  WorkspaceScope scope(*batch.workspace);
  const auto take = [&] { return batch.workspace->take<float>(tokens * hidden); };
  float* delta = take();
  Values s{};
  for (float*& values : s.mixed) values = take();
  for (float** values : {&s.r, &s.w, &s.k, &s.v, &s.a, &s.kk, &s.gate, &s.v_gate}) *values = take();
  s.out = s.mixed[kMixR];  // read for the last time by then
  step.token_shift(x, hidden, 0, delta);
  project(batch, x, delta, s);
  prepare(batch, s, carry);
  step.each([&](const RecurrentRows& rows) {
    const int64_t at = rows.first_token * hidden;
    Wkv7Args args;
    args.r = s.r + at;
    args.w = s.w + at;
    args.k = s.k + at;
    args.v = s.v + at;
    args.a = s.kk + at;
    args.b = s.a + at;
    args.y = s.out + at;
    const StagedState state = step.stage(rows, 1);
    args.state = state.slots();
    args.exports = state.exports();
    args.query_start_loc = rows.query_start_loc;
    args.rows = rows.rows;
    args.num_heads = config_.num_heads;
    args.head_dim = head_dim();
    wkv7()(args, batch);
    state.write_back();
  });
  step.zero_padding(s.out, hidden);
  finish(batch, s);
  output_.forward(batch, s.out, tokens, y);
}

}  // namespace coluber
