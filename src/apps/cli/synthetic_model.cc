// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/synthetic_model.h"

#include <bit>
#include <cmath>
#include <functional>
#include <map>
#include <unordered_map>

#include "base/error.h"
#include "base/json.h"

namespace coluber::cli {
namespace {

// How a tensor is filled.
enum class Values {
  kNormal,   // standard deviation `scale`
  kNearOne,  // 1 plus a little noise: norms
  kOne,
  kUniform,   // -scale .. scale
  kStepBias,  // inverse softplus of steps between 1e-3 and 1e-1
  kDecayRow,  // log(1), log(2), ... along the last dimension: Mamba-1's A_log
  kDecay,     // log of 1 .. 16: Mamba-2's A_log
};

struct Tensor {
  std::string name;
  Shape shape;
  Values values = Values::kNormal;
  float scale = 1.0f;
};

struct Plan {
  Json config;
  std::vector<Tensor> tensors;
};

float fan_in_scale(int64_t inputs) { return 1.0f / std::sqrt(static_cast<float>(inputs)); }

class PlanBuilder {
 public:
  PlanBuilder(Json config, int64_t layers) : layers_(layers) { plan_.config = std::move(config); }

  void matrix(std::string name, int64_t rows, int64_t cols) {
    plan_.tensors.push_back({std::move(name), Shape{rows, cols}, Values::kNormal, fan_in_scale(cols)});
  }
  // A projection back into the residual stream: smaller, so that the stream does not grow with depth.
  void residual(std::string name, int64_t rows, int64_t cols) {
    const float depth = std::sqrt(2.0f * static_cast<float>(layers_));
    plan_.tensors.push_back({std::move(name), Shape{rows, cols}, Values::kNormal, fan_in_scale(cols) / depth});
  }
  void embedding(std::string name, int64_t rows, int64_t cols, bool tied) {
    plan_.tensors.push_back({std::move(name), Shape{rows, cols}, Values::kNormal, tied ? 0.02f : 1.0f});
  }
  void vector(std::string name, int64_t size, Values values, float scale = 0.02f) {
    plan_.tensors.push_back({std::move(name), Shape{size}, values, scale});
  }
  void tensor(std::string name, Shape shape, Values values, float scale = 0.5f) {
    plan_.tensors.push_back({std::move(name), shape, values, scale});
  }
  Plan take() { return std::move(plan_); }

 private:
  Plan plan_;
  int64_t layers_;
};

// --------------------------------------------------------------------------------------------- shapes

Plan plan_mamba(int64_t hidden, int64_t layers, int64_t vocab, bool falcon) {
  const int64_t inner = 2 * hidden, state = 16, rank = (hidden + 15) / 16, width = 4;
  const bool tied = !falcon;
  PlanBuilder plan(
      Json(Json::Object{{"architectures", Json::Array{falcon ? "FalconMambaForCausalLM" : "MambaForCausalLM"}},
                        {"model_type", falcon ? "falcon_mamba" : "mamba"},
                        {"hidden_size", hidden},
                        {"num_hidden_layers", layers},
                        {"vocab_size", vocab},
                        {"state_size", state},
                        {"expand", 2},
                        {"intermediate_size", inner},
                        {"conv_kernel", width},
                        {"time_step_rank", rank},
                        {"use_bias", false},
                        {"use_conv_bias", true},
                        {"hidden_act", "silu"},
                        {"layer_norm_epsilon", 1e-5},
                        {"residual_in_fp32", true},
                        {"tie_word_embeddings", tied}}),
      layers);
  plan.embedding("backbone.embeddings.weight", vocab, hidden, tied);
  for (int64_t i = 0; i < layers; ++i) {
    const std::string layer = fmt::format("backbone.layers.{}.", i);
    plan.vector(layer + "norm.weight", hidden, Values::kNearOne);
    plan.tensor(layer + "mixer.A_log", Shape{inner, state}, Values::kDecayRow);
    plan.vector(layer + "mixer.D", inner, Values::kOne);
    plan.tensor(layer + "mixer.conv1d.weight", Shape{inner, 1, width}, Values::kUniform);
    plan.vector(layer + "mixer.conv1d.bias", inner, Values::kNormal);
    plan.matrix(layer + "mixer.in_proj.weight", 2 * inner, hidden);
    plan.matrix(layer + "mixer.x_proj.weight", rank + 2 * state, inner);
    plan.matrix(layer + "mixer.dt_proj.weight", inner, rank);
    plan.vector(layer + "mixer.dt_proj.bias", inner, Values::kStepBias);
    plan.residual(layer + "mixer.out_proj.weight", hidden, inner);
  }
  plan.vector("backbone.norm_f.weight", hidden, Values::kNearOne);
  if (!tied) plan.matrix("lm_head.weight", vocab, hidden);
  return plan.take();
}

Plan plan_mamba2(int64_t hidden, int64_t layers, int64_t vocab = 50288, int64_t groups = 1) {
  const int64_t inner = 2 * hidden, state = 128, head_dim = 64, heads = inner / head_dim, width = 4;
  const int64_t conv = inner + 2 * groups * state;
  PlanBuilder plan(Json(Json::Object{{"architectures", Json::Array{"Mamba2ForCausalLM"}},
                                     {"model_type", "mamba2"},
                                     {"hidden_size", hidden},
                                     {"num_hidden_layers", layers},
                                     {"vocab_size", vocab},
                                     {"state_size", state},
                                     {"expand", 2},
                                     {"n_groups", groups},
                                     {"num_heads", heads},
                                     {"head_dim", head_dim},
                                     {"conv_kernel", width},
                                     {"chunk_size", 256},
                                     {"use_bias", false},
                                     {"use_conv_bias", true},
                                     {"hidden_act", "silu"},
                                     {"layer_norm_epsilon", 1e-5},
                                     {"rms_norm", true},
                                     {"residual_in_fp32", true},
                                     {"time_step_rank", (hidden + 15) / 16},
                                     {"tie_word_embeddings", true}}),
                   layers);
  plan.embedding("backbone.embeddings.weight", vocab, hidden, true);
  for (int64_t i = 0; i < layers; ++i) {
    const std::string layer = fmt::format("backbone.layers.{}.", i);
    plan.vector(layer + "norm.weight", hidden, Values::kNearOne);
    plan.vector(layer + "mixer.A_log", heads, Values::kDecay);
    plan.vector(layer + "mixer.D", heads, Values::kOne);
    plan.vector(layer + "mixer.dt_bias", heads, Values::kStepBias);
    plan.tensor(layer + "mixer.conv1d.weight", Shape{conv, 1, width}, Values::kUniform);
    plan.vector(layer + "mixer.conv1d.bias", conv, Values::kNormal);
    plan.matrix(layer + "mixer.in_proj.weight", inner + conv + heads, hidden);
    plan.vector(layer + "mixer.norm.weight", inner, Values::kNearOne);
    plan.residual(layer + "mixer.out_proj.weight", hidden, inner);
  }
  plan.vector("backbone.norm_f.weight", hidden, Values::kNearOne);
  return plan.take();
}

void add_lfm2_layer(PlanBuilder& plan, const std::string& layer, bool attention, int64_t hidden, int64_t heads,
                    int64_t feed_forward) {
  const int64_t kv_heads = 8, head_dim = hidden / heads, width = 3;
  plan.vector(layer + "operator_norm.weight", hidden, Values::kNearOne);
  plan.vector(layer + "ffn_norm.weight", hidden, Values::kNearOne);
  if (attention) {
    plan.matrix(layer + "self_attn.q_proj.weight", hidden, hidden);
    plan.matrix(layer + "self_attn.k_proj.weight", kv_heads * head_dim, hidden);
    plan.matrix(layer + "self_attn.v_proj.weight", kv_heads * head_dim, hidden);
    plan.residual(layer + "self_attn.out_proj.weight", hidden, hidden);
    plan.vector(layer + "self_attn.q_layernorm.weight", head_dim, Values::kNearOne);
    plan.vector(layer + "self_attn.k_layernorm.weight", head_dim, Values::kNearOne);
  } else {
    plan.tensor(layer + "conv.conv.weight", Shape{hidden, 1, width}, Values::kUniform);
    plan.matrix(layer + "conv.in_proj.weight", 3 * hidden, hidden);
    plan.residual(layer + "conv.out_proj.weight", hidden, hidden);
  }
  plan.matrix(layer + "feed_forward.w1.weight", feed_forward, hidden);
  plan.matrix(layer + "feed_forward.w3.weight", feed_forward, hidden);
  plan.residual(layer + "feed_forward.w2.weight", hidden, feed_forward);
}

Plan plan_lfm2(int64_t hidden, int64_t heads, int64_t block_ff_dim) {
  const int64_t layers = 16, vocab = 65536, multiple = 256;
  const int64_t feed_forward = (2 * block_ff_dim / 3 + multiple - 1) / multiple * multiple;
  const auto is_attention = [](int64_t i) { return i == 2 || i == 5 || i == 8 || i == 10 || i == 12 || i == 14; };
  Json::Array layer_types;
  for (int64_t i = 0; i < layers; ++i) layer_types.emplace_back(is_attention(i) ? "full_attention" : "conv");
  PlanBuilder plan(Json(Json::Object{{"architectures", Json::Array{"Lfm2ForCausalLM"}},
                                     {"model_type", "lfm2"},
                                     {"hidden_size", hidden},
                                     {"num_hidden_layers", layers},
                                     {"vocab_size", vocab},
                                     {"num_attention_heads", heads},
                                     {"num_key_value_heads", 8},
                                     {"layer_types", std::move(layer_types)},
                                     {"block_dim", hidden},
                                     {"block_ff_dim", block_ff_dim},
                                     {"intermediate_size", block_ff_dim},
                                     {"block_auto_adjust_ff_dim", true},
                                     {"block_ffn_dim_multiplier", 1.0},
                                     {"block_multiple_of", multiple},
                                     {"conv_L_cache", 3},
                                     {"conv_bias", false},
                                     {"norm_eps", 1e-5},
                                     {"rope_theta", 1000000.0},
                                     {"max_position_embeddings", 128000},
                                     {"tie_word_embeddings", true},
                                     {"tie_embedding", true}}),
                   layers);
  plan.embedding("model.embed_tokens.weight", vocab, hidden, true);
  plan.vector("model.embedding_norm.weight", hidden, Values::kNearOne);
  for (int64_t i = 0; i < layers; ++i) {
    add_lfm2_layer(plan, fmt::format("model.layers.{}.", i), is_attention(i), hidden, heads, feed_forward);
  }
  return plan.take();
}

const std::map<std::string, std::function<Plan()>, std::less<>>& shapes() {
  static const std::map<std::string, std::function<Plan()>, std::less<>> table = {
      {"mamba-130m", [] { return plan_mamba(768, 24, 50280, false); }},
      {"mamba-370m", [] { return plan_mamba(1024, 48, 50280, false); }},
      {"mamba-790m", [] { return plan_mamba(1536, 48, 50280, false); }},
      {"mamba-1.4b", [] { return plan_mamba(2048, 48, 50280, false); }},
      {"mamba-2.8b", [] { return plan_mamba(2560, 64, 50280, false); }},
      {"falcon-mamba-7b", [] { return plan_mamba(4096, 64, 65024, true); }},
      {"mamba2-130m", [] { return plan_mamba2(768, 24); }},
      {"mamba2-370m", [] { return plan_mamba2(1024, 48); }},
      {"mamba2-780m", [] { return plan_mamba2(1536, 48); }},
      {"mamba2-1.3b", [] { return plan_mamba2(2048, 48); }},
      {"mamba2-2.7b", [] { return plan_mamba2(2560, 64); }},
      // Nemotron-H-8B's 24 Mamba-2 layers between its vocabulary, without its feed-forward and attention layers.
      {"nemotron-h-8b-mixer-stack", [] { return plan_mamba2(4096, 24, 131072, 8); }},
      {"lfm2-350m", [] { return plan_lfm2(1024, 16, 6656); }},
      {"lfm2-700m", [] { return plan_lfm2(1536, 24, 10240); }},
      {"lfm2-1.2b", [] { return plan_lfm2(2048, 32, 12288); }},
  };
  return table;
}

// --------------------------------------------------------------------------------------------- values

// splitmix64: a fixed seed gives the same weights everywhere.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t bits() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }
  float uniform() { return static_cast<float>(bits() >> 40) * 0x1p-24f; }
  // The sum of four uniform values is near enough to normal for weights, and one draw of 64 bits gives it.
  float normal() {
    constexpr float kStep = 1.7320508f / 65536.0f;  // sqrt(12 / 4) / 2^16
    const uint64_t z = bits();
    const float sum = static_cast<float>((z & 0xFFFF) + (z >> 16 & 0xFFFF) + (z >> 32 & 0xFFFF) + (z >> 48));
    return (sum - 131070.0f) * kStep;
  }

 private:
  uint64_t state_;
};

float make_value(const Tensor& tensor, int64_t index, Random& random) {
  switch (tensor.values) {
    case Values::kNormal:
      return random.normal() * tensor.scale;
    case Values::kNearOne:
      return 1.0f + 0.05f * random.normal();
    case Values::kOne:
      return 1.0f;
    case Values::kUniform:
      return (2.0f * random.uniform() - 1.0f) * tensor.scale;
    case Values::kStepBias: {
      const float step = std::exp(std::log(1e-3f) + random.uniform() * std::log(100.0f));
      return step + std::log(-std::expm1(-step));
    }
    case Values::kDecayRow:
      return std::log(static_cast<float>(index % tensor.shape[tensor.shape.rank() - 1] + 1));
    case Values::kDecay:
      return std::log(1.0f + 15.0f * random.uniform());
  }
  return 0.0f;
}

// Truncated: which of two neighbours a random weight takes does not matter.
uint16_t to_bfloat16(float value) { return static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16); }

// "backbone.layers.17.norm.weight" to "backbone.layers.*.norm.weight".
std::string shared_name(std::string_view name) {
  std::string out;
  for (size_t at = 0; at < name.size(); ++at) {
    const bool digit = name[at] >= '0' && name[at] <= '9' && (name[at - 1] == '.' || out.back() == '*');
    if (!digit) {
      out += name[at];
    } else if (out.back() != '*') {
      out += '*';
    }
  }
  return out;
}

class SyntheticWeights : public WeightSource {
 public:
  SyntheticWeights(std::string shape, std::vector<Tensor> tensors)
      : shape_(std::move(shape)), tensors_(std::move(tensors)) {
    for (size_t i = 0; i < tensors_.size(); ++i) index_.emplace(tensors_[i].name, i);
  }

  bool contains(std::string_view name) const override { return index_.contains(std::string(name)); }

  TensorView get(std::string_view name) const override {
    const auto found = index_.find(std::string(name));
    if (found == index_.end()) throw make_error(ErrorCode::kNotFound, "{} has no tensor '{}'", describe(), name);
    const Tensor& tensor = tensors_[found->second];
    const std::string key = shared_name(name) + tensor.shape.to_string();
    std::vector<uint16_t>& values = values_[key];
    if (values.empty()) {
      Random random(std::hash<std::string>{}(key));
      values.resize(static_cast<size_t>(tensor.shape.count()));
      for (size_t i = 0; i < values.size(); ++i)
        values[i] = to_bfloat16(make_value(tensor, static_cast<int64_t>(i), random));
    }
    return TensorView::contiguous(values.data(), DType::kBFloat16, tensor.shape);
  }

  std::vector<std::string> names() const override {
    std::vector<std::string> out;
    for (const Tensor& tensor : tensors_) out.push_back(tensor.name);
    return out;
  }
  std::string describe() const override { return "synthetic model " + shape_; }

 private:
  std::string shape_;
  std::vector<Tensor> tensors_;
  std::unordered_map<std::string, size_t> index_;
  mutable std::map<std::string, std::vector<uint16_t>> values_;  // made when first asked for
};

}  // namespace

std::vector<std::string> synthetic_shapes() {
  std::vector<std::string> names;
  for (const auto& [name, plan] : shapes()) names.push_back(name);
  return names;
}

SyntheticModel make_synthetic_model(std::string_view shape) {
  const auto found = shapes().find(shape);
  if (found == shapes().end()) {
    std::string known;
    for (const auto& [name, plan] : shapes()) known += (known.empty() ? "" : ", ") + name;
    throw make_error(ErrorCode::kInvalidArgument, "--synthetic expects one of {}; found '{}'", known, shape);
  }
  Plan plan = found->second();
  return {plan.config.dump(), std::make_unique<SyntheticWeights>(std::string(shape), std::move(plan.tensors))};
}

}  // namespace coluber::cli
