// SPDX-License-Identifier: Apache-2.0
// What families may ask of Mlp, Experts and MoeBlock, against the formulas in double: activations, limits, multipliers,
// weights of several products in one tensor, shared experts, a narrower space.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "layers/memory_weights_test.h"
#include "layers/mlp.h"
#include "layers/moe.h"

namespace coluber {
namespace {

constexpr int64_t kRows = 7, kWidth = 12, kInner = 10, kExperts = 6, kTopK = 2;
using Vector = std::vector<double>;

struct Weights {
  MemoryWeights source;
  std::map<std::string, std::vector<float>> values;

  void add(const std::string& name, const Shape& shape, DType dtype = DType::kFloat32) {
    std::mt19937_64 generator(values.size() + 1);
    std::uniform_real_distribution<float> uniform(-0.6f, 0.6f);
    std::vector<float>& value = values[name];
    for (int64_t i = 0; i < shape.count(); ++i) value.push_back(uniform(generator));
    source.add(name, shape, value, dtype);
    convert_to_float(source.get(name).data, dtype, shape.count(), value.data());  // as rounded
  }

  // Rows [first, first + count) of a tensor of `cols` columns times x, with a bias where there is one.
  Vector times(const std::string& name, const Vector& x, int64_t first, int64_t count) const {
    const std::vector<float>& w = values.at(name);
    const std::string bias_name = name.substr(0, name.rfind('.')) + ".bias";
    const auto bias = values.find(bias_name);
    Vector y;
    for (int64_t o = first; o < first + count; ++o) {
      double sum = bias == values.end() ? 0.0 : static_cast<double>(bias->second[static_cast<size_t>(o)]);
      for (size_t i = 0; i < x.size(); ++i) sum += x[i] * w[static_cast<size_t>(o) * x.size() + i];
      y.push_back(sum);
    }
    return y;
  }
};

double silu(double x) { return x / (1 + std::exp(-x)); }
double relu2(double x) { return x > 0 ? x * x : 0; }
Vector row_of(const std::vector<float>& x, int64_t row) {
  return {x.begin() + row * kWidth, x.begin() + (row + 1) * kWidth};
}
std::vector<float> input() {
  std::mt19937_64 generator(99);
  std::uniform_real_distribution<float> uniform(-2, 2);
  std::vector<float> x;
  for (int64_t i = 0; i < kRows * kWidth; ++i) x.push_back(uniform(generator));
  return x;
}

// Runs a layer both ways and compares every row with the formula.
template <typename Layer, typename Formula>
void expect_formula(const Layer& layer, LoadHarness& harness, WeightLoader& loader, Formula&& formula) {
  ModelInfo info;
  loader.finish(info);
  EXPECT_TRUE(info.notes.empty()) << "a tensor was not used";
  const std::vector<float> x = input();
  const std::vector<int32_t> ids(kRows);
  std::vector<float> y(x.size(), NAN), added(x.size(), 1.0f);
  layer.forward(harness.batch(ids), x.data(), y.data());
  layer.forward(harness.batch(ids), x.data(), added.data(), true);
  for (int64_t t = 0; t < kRows; ++t) {
    const Vector want = formula(row_of(x, t));
    for (int64_t d = 0; d < kWidth; ++d) {
      const size_t i = static_cast<size_t>(t * kWidth + d);
      ASSERT_NEAR(y[i], want[static_cast<size_t>(d)], 3e-5) << t;
      ASSERT_NEAR(added[i], want[static_cast<size_t>(d)] + 1, 3e-5) << t;
    }
  }
}

TEST(Mlp, OneTensorWhoseRowsOfUpComeFirst) {
  Weights weights;
  weights.add("fc1.weight", Shape{2 * kInner, kWidth});
  weights.add("fc2.weight", Shape{kWidth, kInner});
  LoadHarness harness(weights.source);
  WeightLoader loader(harness.context());
  const Mlp mlp({.hidden_size = kWidth, .intermediate_size = kInner, .down = "fc2", .gate_up = "fc1", .up_first = true},
                loader);
  expect_formula(mlp, harness, loader, [&](const Vector& x) {
    const Vector both = weights.times("fc1.weight", x, 0, 2 * kInner);
    Vector h;
    for (size_t i = 0; i < kInner; ++i) h.push_back(silu(both[kInner + i]) * both[i]);
    return weights.times("fc2.weight", h, 0, kWidth);
  });
}

TEST(Mlp, OneTensorForGateAndUpWithLimitAndMultipliers) {
  Weights weights;
  weights.add("input.weight", Shape{2 * kInner, kWidth});
  weights.add("input.bias", Shape{2 * kInner});
  weights.add("output.weight", Shape{kWidth, kInner});
  weights.add("output.bias", Shape{kWidth});
  LoadHarness harness(weights.source);
  WeightLoader loader(harness.context());
  const Mlp mlp({.hidden_size = kWidth,
                 .intermediate_size = kInner,
                 .bias = true,
                 .down = "output",
                 .gate_up = "input",
                 .limit = 0.8f,
                 .gate_multiplier = 1.5,
                 .down_multiplier = 0.25},
                loader);
  expect_formula(mlp, harness, loader, [&](const Vector& x) {
    const Vector both = weights.times("input.weight", x, 0, 2 * kInner);
    Vector h;
    for (size_t i = 0; i < kInner; ++i)
      h.push_back(silu(std::min(1.5 * both[i], 0.8)) * std::clamp(both[kInner + i], -0.8, 0.8));
    Vector y = weights.times("output.weight", h, 0, kWidth);
    for (double& value : y) value *= 0.25;
    return y;
  });
}

TEST(Mlp, WithoutAGate) {
  Weights weights;
  weights.add("up_proj.weight", Shape{kInner, kWidth}, DType::kBFloat16);
  weights.add("down_proj.weight", Shape{kWidth, kInner}, DType::kBFloat16);
  LoadHarness harness(weights.source);
  WeightLoader loader(harness.context());
  const Mlp mlp({.hidden_size = kWidth, .intermediate_size = kInner, .gate = "", .activation = Activation::kRelu2},
                loader);
  expect_formula(mlp, harness, loader, [&](const Vector& x) {
    Vector h = weights.times("up_proj.weight", x, 0, kInner);
    for (double& value : h) value = relu2(value);
    return weights.times("down_proj.weight", h, 0, kWidth);
  });
}

// The chosen experts and their weights, ties aside: softmax, renormalised.
std::vector<std::pair<int64_t, double>> choose(const Vector& logits, bool renormalize) {
  std::vector<std::pair<double, int64_t>> ranked;
  double all = 0, chosen = 0;
  for (size_t e = 0; e < logits.size(); ++e) {
    ranked.emplace_back(-logits[e], static_cast<int64_t>(e));
    all += std::exp(logits[e]);
  }
  std::sort(ranked.begin(), ranked.end());
  for (int64_t j = 0; j < kTopK; ++j) chosen += std::exp(-ranked[static_cast<size_t>(j)].first);
  std::vector<std::pair<int64_t, double>> result;
  for (int64_t j = 0; j < kTopK; ++j) {
    const auto& [negative, e] = ranked[static_cast<size_t>(j)];
    result.emplace_back(e, std::exp(-negative) / (renormalize ? chosen : all));
  }
  return result;
}

TEST(MoeBlock, StackedExpertsBesideAGatedSharedOne) {
  Weights weights;
  weights.add("gate.weight", Shape{kExperts, kWidth});
  weights.add("experts.gate_up_proj", Shape{kExperts, 2 * kInner, kWidth}, DType::kBFloat16);
  weights.add("experts.down_proj", Shape{kExperts, kWidth, kInner}, DType::kBFloat16);
  for (const char* name : {"gate_proj", "up_proj"})
    weights.add(std::string("shared_expert.") + name + ".weight", Shape{4, kWidth});
  weights.add("shared_expert.down_proj.weight", Shape{kWidth, 4});
  weights.add("shared_expert_gate.weight", Shape{1, kWidth});
  LoadHarness harness(weights.source);
  WeightLoader loader(harness.context());
  MoeConfig config{.hidden_size = kWidth, .intermediate_size = kInner, .num_experts = kExperts, .top_k = kTopK};
  config.stacked_w1_w3 = "experts.gate_up_proj";
  config.stacked_w2 = "experts.down_proj";
  config.scale = 1.5;
  config.shared = MlpConfig{.hidden_size = kWidth, .intermediate_size = 4};
  config.shared_prefix = "shared_expert";
  config.shared_gate = "shared_expert_gate";
  const MoeBlock block(config, loader);
  expect_formula(block, harness, loader, [&](const Vector& x) {
    Vector y(kWidth, 0.0);
    for (const auto& [e, weight] : choose(weights.times("gate.weight", x, 0, kExperts), true)) {
      const Vector both = weights.times("experts.gate_up_proj", x, e * 2 * kInner, 2 * kInner);
      Vector h;
      for (size_t i = 0; i < kInner; ++i) h.push_back(silu(both[i]) * both[kInner + i]);
      const Vector out = weights.times("experts.down_proj", h, e * kWidth, kWidth);
      for (size_t d = 0; d < kWidth; ++d) y[d] += 1.5 * weight * out[d];
    }
    const Vector gate = weights.times("shared_expert.gate_proj.weight", x, 0, 4);
    const Vector up = weights.times("shared_expert.up_proj.weight", x, 0, 4);
    Vector h;
    for (size_t i = 0; i < 4; ++i) h.push_back(silu(gate[i]) * up[i]);
    const Vector out = weights.times("shared_expert.down_proj.weight", h, 0, kWidth);
    const double whole = 1 / (1 + std::exp(-weights.times("shared_expert_gate.weight", x, 0, 1)[0]));
    for (size_t d = 0; d < kWidth; ++d) y[d] += whole * out[d];
    return y;
  });
}

TEST(MoeBlock, UngatedExpertsInANarrowerSpace) {
  constexpr int64_t kLatent = 5;
  Weights weights;
  weights.add("gate.weight", Shape{kExperts, kWidth});
  for (int64_t e = 0; e < kExperts; ++e) {
    weights.add("experts." + std::to_string(e) + ".up_proj.weight", Shape{kInner, kLatent});
    weights.add("experts." + std::to_string(e) + ".down_proj.weight", Shape{kLatent, kInner});
  }
  for (const auto& [name, out, in] :
       {std::tuple{"fc1_latent_proj", kLatent, kWidth}, {"fc2_latent_proj", kWidth, kLatent}}) {
    weights.add(std::string(name) + ".weight", Shape{out, in});
    weights.add(std::string(name) + ".bias", Shape{out});
  }
  LoadHarness harness(weights.source);
  WeightLoader loader(harness.context());
  MoeConfig config{.hidden_size = kWidth, .intermediate_size = kInner, .num_experts = kExperts, .top_k = kTopK};
  config.renormalize = false;
  config.w1 = "up_proj";
  config.w3 = "";
  config.w2 = "down_proj";
  config.activation = Activation::kRelu2;
  config.latent_size = kLatent;
  config.latent_bias = true;
  const MoeBlock block(config, loader);
  expect_formula(block, harness, loader, [&](const Vector& x) {
    const Vector narrow = weights.times("fc1_latent_proj.weight", x, 0, kLatent);
    Vector sum(kLatent, 0.0);
    for (const auto& [e, weight] : choose(weights.times("gate.weight", x, 0, kExperts), false)) {
      const std::string prefix = "experts." + std::to_string(e);
      Vector h = weights.times(prefix + ".up_proj.weight", narrow, 0, kInner);
      for (double& value : h) value = relu2(value);
      const Vector out = weights.times(prefix + ".down_proj.weight", h, 0, kLatent);
      for (size_t d = 0; d < kLatent; ++d) sum[d] += weight * out[d];
    }
    return weights.times("fc2_latent_proj.weight", sum, 0, kWidth);
  });
}

TEST(MoeBlock, SizesThatMakeNoSenseAreRefusedByName) {
  const Weights weights;
  LoadHarness harness(weights.source);
  MoeConfig config{.hidden_size = kWidth, .intermediate_size = kInner, .num_experts = 6, .top_k = 5};
  auto message = [&] {
    try {
      MoeBlock block(config, WeightLoader(harness.context()));
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("not refused");
  };
  config.num_groups = 4;
  EXPECT_NE(message().find("expected a divisor of 6, found 4"), std::string::npos) << message();
  config.num_groups = 3;
  config.topk_groups = 2;
  EXPECT_NE(message().find("at most the 4 of its groups, found 5"), std::string::npos) << message();
}

}  // namespace
}  // namespace coluber
