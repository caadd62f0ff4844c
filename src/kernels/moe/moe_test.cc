// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/moe/activation.h"
#include "kernels/moe/experts.h"
#include "kernels/op_test.h"

namespace coluber {
namespace {

// Each function that configs may name, once or more.
std::vector<Activation> all_activations() {
  std::vector<Activation> all = {Activation::kEluPlusOne};
  for (std::string_view name : activation_names()) all.push_back(parse_activation(name).value());
  return all;
}

TEST(Activate, CandidatesAgreeOverSizesAndInPlace) {
  ThreadPool pool(2);
  for (Activation activation : all_activations()) {
    SCOPED_TRACE(static_cast<int>(activation));
    for (int64_t count : {1, 7, 16, 31, 4096, 20001}) {
      std::vector<float> gate = random_floats(count, -12, 12, 1), up = random_floats(count, -3, 3, 2);
      gate[0] = -90.0f;
      expect_candidates_agree(activate(), kActivateTolerance, [&](ActivateFunction f) {
        std::vector<float> apart(gate.size()), in_place = gate, ungated(gate.size());
        ActivateArgs args{activation, gate.data(), count, up.data(), count, apart.data(), count, 1, count};
        f(args, pool);
        args.gate = args.out = in_place.data();
        f(args, pool);
        args = {activation, gate.data(), count, nullptr, 0, ungated.data(), count, 1, count};
        f(args, pool);
        return std::vector<OpOutput>{{"apart", apart}, {"in place", in_place}, {"ungated", ungated}};
      });
    }
  }
}

TEST(Activate, HalvesOfOneProductAndALimit) {
  ThreadPool pool(2);
  for (int64_t cols : {5, 48, 5000}) {
    const int64_t rows = 9;
    const std::vector<float> both = random_floats(rows * 2 * cols, -4, 4, 3);
    expect_candidates_agree(activate(), kActivateTolerance, [&](ActivateFunction f) {
      std::vector<float> out(static_cast<size_t>(rows * cols));
      f({Activation::kSilu, both.data(), 2 * cols, both.data() + cols, 2 * cols, out.data(), cols, rows, cols, 1.5f,
         0.75f},
        pool);
      return std::vector<OpOutput>{{"out", out}};
    });
  }
  const std::vector<float> gate = {3.0f, 3.0f, -3.0f}, up = {4.0f, -4.0f, 0.5f};
  std::vector<float> out(3);
  activate()(ActivateArgs{Activation::kRelu, gate.data(), 3, up.data(), 3, out.data(), 3, 1, 3, 1.5f}, pool);
  EXPECT_EQ(out, (std::vector<float>{2.25f, -2.25f, 0.0f}));
}

TEST(Activate, NanGoesThroughAndNamesAreThoseOfConfigs) {
  ThreadPool pool(1);
  for (Activation activation : all_activations()) {
    for (const auto& candidate : activate().candidates()) {
      if (candidate.isa > active_isa()) continue;
      float x = std::nanf("");
      candidate.function({activation, &x, 1, nullptr, 0, &x, 1, 1, 1}, pool);
      EXPECT_TRUE(std::isnan(x)) << candidate.name << ", activation " << static_cast<int>(activation);
    }
  }
  EXPECT_EQ(parse_activation("gelu_pytorch_tanh"), Activation::kGeluTanh);
  EXPECT_EQ(parse_activation("swish"), Activation::kSilu);
  for (const char* word : {"prelu", "xielu", "SiLU", ""}) EXPECT_FALSE(parse_activation(word)) << word;
}

// What torch 2.11 gives in float64 for ACT2FN's functions at these places.
TEST(Activate, AreThoseOfTransformers) {
  struct Expected {
    const char* name;
    double values[5];
  };
  static constexpr Expected kExpected[] = {
      {"gelu", {-0.000126684967, -0.169970514, 0.0687172781, 1.3997892, 12}},
      {"gelu_10", {-0.000126684967, -0.169970514, 0.0687172781, 1.3997892, 10}},
      {"gelu_accurate", {-7.02459482e-05, -0.170039445, 0.0687171986, 1.39957158, 12}},
      {"gelu_fast", {-7.02459482e-05, -0.170039445, 0.0687171986, 1.39957158, 12}},
      {"gelu_new", {-7.02459482e-05, -0.170039445, 0.0687171986, 1.39957158, 12}},
      {"gelu_python", {-0.000126684967, -0.169970514, 0.0687172781, 1.3997892, 12}},
      {"gelu_python_tanh", {-7.02459482e-05, -0.170039445, 0.0687171986, 1.39957158, 12}},
      {"gelu_pytorch_tanh", {-7.02459482e-05, -0.170039445, 0.0687171986, 1.39957158, 12}},
      {"hardswish", {-0, -0.28125, 0.0651041667, 1.125, 12}},
      {"laplace", {0, 1.20022934e-07, 0.0195319065, 0.997528541, 1}},
      {"leaky_relu", {-0.04, -0.0075, 0.125, 1.5, 12}},
      {"linear", {-4, -0.75, 0.125, 1.5, 12}},
      {"mish", {-0.0725917408, -0.276494715, 0.0799575708, 1.40337827, 12}},
      {"quick_gelu", {-0.00441472414, -0.163609942, 0.0691234734, 1.3916622, 12}},
      {"relu", {0, 0, 0.125, 1.5, 12}},
      {"relu2", {0, 0, 0.015625, 2.25, 144}},
      {"relu6", {0, 0, 0.125, 1.5, 6}},
      {"sigmoid", {0.01798621, 0.320821301, 0.531209373, 0.817574476, 0.999993856}},
      {"silu", {-0.0719448398, -0.240615976, 0.0664011717, 1.22636171, 11.9999263}},
      {"sqrtsoftplus", {0.134721668, 0.621989555, 0.870401652, 1.30438234, 3.4641025}},
      {"swish", {-0.0719448398, -0.240615976, 0.0664011717, 1.22636171, 11.9999263}},
      {"tanh", {-0.9993293, -0.635148952, 0.124353002, 0.905148254, 1}},
  };
  ThreadPool pool(1);
  for (const Expected& expected : kExpected) {
    float y[5];
    const float x[5] = {-4.0f, -0.75f, 0.125f, 1.5f, 12.0f};
    activate()(ActivateArgs{parse_activation(expected.name).value(), x, 5, nullptr, 0, y, 5, 1, 5}, pool);
    for (int i = 0; i < 5; ++i)
      EXPECT_NEAR(y[i], expected.values[i], 3e-7 + 3e-6 * std::fabs(expected.values[i]))
          << expected.name << ' ' << x[i];
  }
  EXPECT_EQ(std::size(kExpected), activation_names().size());
}

TEST(CombineExperts, CandidatesAgree) {
  ThreadPool pool(2);
  for (int64_t width : {1, 16, 48, 333}) {
    for (bool accumulate : {false, true}) {
      const int64_t tokens = 300, top_k = 3;
      const std::vector<float> rows = random_floats(tokens * top_k * width, -2, 2, 3);
      const std::vector<float> weights = random_floats(tokens * top_k, 0, 1, 4);
      std::vector<int32_t> places(static_cast<size_t>(tokens * top_k));
      std::iota(places.begin(), places.end(), 0);
      std::shuffle(places.begin(), places.end(), std::mt19937_64(5));
      expect_candidates_agree(combine_experts(), kCombineExpertsTolerance, [&](CombineExpertsFunction f) {
        std::vector<float> y = random_floats(tokens * width, -2, 2, 6);
        f({rows.data(), places.data(), weights.data(), y.data(), tokens, top_k, width, accumulate}, pool);
        return std::vector<OpOutput>{{"y", y}};
      });
    }
  }
}

struct Routes {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

Routes route(const std::vector<float>& logits, int64_t experts, int64_t top_k, bool renormalize, ThreadPool& pool) {
  const int64_t tokens = static_cast<int64_t>(logits.size()) / experts;
  Routes routes{std::vector<int32_t>(static_cast<size_t>(tokens * top_k)),
                std::vector<float>(static_cast<size_t>(tokens * top_k))};
  Workspace workspace;
  route_top_k()(
      RouterArgs{logits.data(), tokens, experts, top_k, renormalize, routes.ids.data(), routes.weights.data()}, pool,
      workspace);
  return routes;
}

TEST(RouteTopK, MatchesSortingTheSoftmax) {
  ThreadPool pool(3);
  for (int64_t experts : {1, 4, 32, 129}) {
    for (int64_t top_k : {int64_t{1}, std::min<int64_t>(2, experts), std::min<int64_t>(9, experts), experts}) {
      for (bool renormalize : {true, false}) {
        const int64_t tokens = 100;
        std::vector<float> logits = random_floats(tokens * experts, -3, 3, 7);
        for (float& x : logits) x = std::round(x * 2) / 2;  // ties
        const Routes routes = route(logits, experts, top_k, renormalize, pool);
        for (int64_t t = 0; t < tokens; ++t) {
          const float* x = logits.data() + t * experts;
          std::vector<int32_t> order(static_cast<size_t>(experts));
          std::iota(order.begin(), order.end(), 0);
          std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return x[a] > x[b]; });
          double all = 0, chosen = 0;
          for (int64_t i = 0; i < experts; ++i) all += std::exp(static_cast<double>(x[i]));
          order.resize(static_cast<size_t>(top_k));
          for (int32_t e : order) chosen += std::exp(static_cast<double>(x[e]));
          std::sort(order.begin(), order.end());
          for (int64_t j = 0; j < top_k; ++j) {
            const size_t i = static_cast<size_t>(t * top_k + j);
            ASSERT_EQ(routes.ids[i], order[static_cast<size_t>(j)]) << "token " << t;
            ASSERT_NEAR(routes.weights[i],
                        std::exp(static_cast<double>(x[routes.ids[i]])) / (renormalize ? chosen : all), 1e-6);
          }
        }
      }
    }
  }
}

TEST(RouteTopK, NanLogitsNameValidExperts) {
  ThreadPool pool(1);
  const float nan = std::nanf("");
  const Routes routes = route({nan, nan, nan, 1.0f, nan, 2.0f}, 3, 2, true, pool);
  EXPECT_EQ(routes.ids, (std::vector<int32_t>{0, 1, 0, 2}));
  EXPECT_TRUE(std::isnan(routes.weights[0]));
  EXPECT_FALSE(std::isnan(routes.weights[2]));
}

// The formula of the contract, in double, by sorting.
TEST(RouteTopK, SigmoidWithBiasGroupsEpsilonScaleAndExpertsThatAreAlwaysThere) {
  ThreadPool pool(2);
  Workspace workspace;
  const int64_t tokens = 60, experts = 12, always = 2, top_k = 4, groups = 4, all = experts + always;
  const std::vector<float> logits = random_floats(tokens * all, -3, 3, 11), bias = random_floats(experts, -1, 1, 12);
  std::vector<int32_t> ids(static_cast<size_t>(tokens * (top_k + always)));
  std::vector<float> weights(ids.size());
  RouterArgs args{logits.data(), tokens, experts, top_k, true, ids.data(), weights.data(), RouterScore::kSigmoid};
  args.selection_bias = bias.data();
  args.num_groups = groups;
  args.topk_groups = 2;
  args.epsilon = 0.25f;
  args.scale = 2.5f;
  args.num_always = always;
  route_top_k()(args, pool, workspace);
  for (int64_t t = 0; t < tokens; ++t) {
    std::vector<double> score, choice;
    for (int64_t e = 0; e < all; ++e) {
      score.push_back(1 / (1 + std::exp(-static_cast<double>(logits[static_cast<size_t>(t * all + e)]))));
      if (e < experts) choice.push_back(score.back() + bias[static_cast<size_t>(e)]);
    }
    std::vector<std::pair<double, int64_t>> ranked;
    for (int64_t g = 0; g < groups; ++g) {
      std::vector<double> members(choice.begin() + g * 3, choice.begin() + g * 3 + 3);
      std::sort(members.rbegin(), members.rend());
      ranked.emplace_back(-(members[0] + members[1]), g);
    }
    std::sort(ranked.begin(), ranked.end());
    std::vector<int32_t> allowed;
    for (int64_t i = 0; i < 2; ++i) {
      for (int64_t e = 0; e < 3; ++e)
        allowed.push_back(static_cast<int32_t>(ranked[static_cast<size_t>(i)].second * 3 + e));
    }
    std::sort(allowed.begin(), allowed.end(),
              [&](int32_t a, int32_t b) { return choice[static_cast<size_t>(a)] > choice[static_cast<size_t>(b)]; });
    allowed.resize(static_cast<size_t>(top_k));
    std::sort(allowed.begin(), allowed.end());
    allowed.insert(allowed.end(), {12, 13});
    double sum = 0.25;
    for (int32_t e : allowed) sum += score[static_cast<size_t>(e)];
    for (size_t j = 0; j < allowed.size(); ++j) {
      const size_t i = static_cast<size_t>(t) * allowed.size() + j;
      ASSERT_EQ(ids[i], allowed[j]) << "token " << t;
      ASSERT_NEAR(weights[i], 2.5 * score[static_cast<size_t>(allowed[j])] / sum, 1e-6);
    }
  }
}

TEST(RouteTopK, ABiasChoosesAndDoesNotWeigh) {
  ThreadPool pool(1);
  Workspace workspace;
  const std::vector<float> logits = {2.0f, 1.0f, 0.0f}, bias = {-1.0f, 0.0f, 0.9f};
  std::vector<int32_t> ids(1);
  std::vector<float> weights(1);
  RouterArgs args{logits.data(), 1, 3, 1, false, ids.data(), weights.data()};
  args.selection_bias = bias.data();
  route_top_k()(args, pool, workspace);
  EXPECT_EQ(ids[0], 2);
  EXPECT_NEAR(weights[0], 1 / (1 + std::exp(1.0) + std::exp(2.0)), 1e-6);
}

struct Block {
  int64_t width, inner;
  std::vector<std::vector<float>> w1, w2, w3;
  std::vector<Expert> experts;

  Block(int64_t width, int64_t inner, int64_t count, ThreadPool& pool) : width(width), inner(inner) {
    for (int64_t e = 0; e < count; ++e) {
      const uint64_t seed = static_cast<uint64_t>(e) * 10;
      w1.push_back(random_floats(inner * width, -0.3f, 0.3f, seed));
      w3.push_back(random_floats(inner * width, -0.3f, 0.3f, seed + 1));
      w2.push_back(random_floats(width * inner, -0.3f, 0.3f, seed + 2));
      auto pack = [&](const std::vector<float>& w, int64_t n, int64_t k) {
        return PackedMatrix::pack(TensorView::contiguous(w.data(), DType::kFloat32, Shape{n, k}), pool);
      };
      experts.push_back({pack(w1.back(), inner, width), pack(w3.back(), inner, width), pack(w2.back(), width, inner)});
    }
  }

  std::vector<float> run(const std::vector<float>& x, const Routes& routes, int64_t top_k, ThreadPool& pool,
                         bool accumulate = false) const {
    Workspace workspace;
    std::vector<float> y(x.size(), accumulate ? 1.0f : NAN);
    run_experts()(ExpertsArgs{x.data(), y.data(), static_cast<int64_t>(x.size()) / width, experts, routes.ids.data(),
                              routes.weights.data(), top_k, accumulate, false},
                  pool, workspace);
    return y;
  }

  // The formula of the contract in double.
  std::vector<double> naive(const float* x, const int32_t* ids, const float* weights, int64_t top_k) const {
    std::vector<double> y(static_cast<size_t>(width), 0.0);
    for (int64_t j = 0; j < top_k; ++j) {
      const size_t e = static_cast<size_t>(ids[j]);
      for (int64_t f = 0; f < inner; ++f) {
        double gate = 0, up = 0;
        for (int64_t d = 0; d < width; ++d) {
          gate += static_cast<double>(w1[e][static_cast<size_t>(f * width + d)]) * x[d];
          up += static_cast<double>(w3[e][static_cast<size_t>(f * width + d)]) * x[d];
        }
        const double h = gate / (1 + std::exp(-gate)) * up * static_cast<double>(weights[j]);
        for (int64_t d = 0; d < width; ++d) y[static_cast<size_t>(d)] += h * w2[e][static_cast<size_t>(d * inner + f)];
      }
    }
    return y;
  }
};

TEST(RunExperts, MatchesTheFormulaForAnyNumberOfTokens) {
  ThreadPool pool(2);
  const Block block(24, 20, 5, pool);
  for (int64_t tokens : {0, 1, 2, 7, 100}) {
    for (int64_t top_k : {1, 2, 5}) {
      const std::vector<float> x = random_floats(tokens * 24, -2, 2, 8);
      const Routes routes = route(random_floats(tokens * 5, -1, 1, 9), 5, top_k, true, pool);
      const std::vector<float> y = block.run(x, routes, top_k, pool), added = block.run(x, routes, top_k, pool, true);
      for (int64_t t = 0; t < tokens; ++t) {
        const std::vector<double> want =
            block.naive(x.data() + t * 24, routes.ids.data() + t * top_k, routes.weights.data() + t * top_k, top_k);
        for (int64_t d = 0; d < 24; ++d) {
          ASSERT_NEAR(y[static_cast<size_t>(t * 24 + d)], want[static_cast<size_t>(d)], 2e-5);
          ASSERT_NEAR(added[static_cast<size_t>(t * 24 + d)], want[static_cast<size_t>(d)] + 1, 2e-5);
        }
      }
    }
  }
}

TEST(RunExperts, AnIdBehindTheLastExpertAddsNothingAndUngatedExpertsTakeTheirActivation) {
  ThreadPool pool(2);
  Block block(24, 20, 3, pool);
  const int64_t tokens = 5;
  const std::vector<float> x = random_floats(tokens * 24, -2, 2, 8);
  const Routes routes{{0, 3, 1, 3, 3, 3, 1, 2, 0, 1}, random_floats(tokens * 2, 0, 1, 9)};
  const std::vector<float> y = block.run(x, routes, 2, pool);
  for (int64_t t = 0; t < tokens; ++t) {
    const int32_t* ids = routes.ids.data() + t * 2;
    const int64_t chosen = std::count_if(ids, ids + 2, [](int32_t e) { return e < 3; });
    const std::vector<double> want = block.naive(x.data() + t * 24, ids, routes.weights.data() + t * 2, chosen);
    for (size_t d = 0; d < 24; ++d) ASSERT_NEAR(y[static_cast<size_t>(t) * 24 + d], want[d], 2e-5) << "token " << t;
  }
  for (Expert& expert : block.experts) expert.w3 = {};
  std::vector<float> ungated(24);
  Workspace workspace;
  const int32_t id = 1;
  const float weight = 0.5f;
  run_experts()(
      ExpertsArgs{x.data(), ungated.data(), 1, block.experts, &id, &weight, 1, false, false, Activation::kRelu2}, pool,
      workspace);
  std::vector<double> want(24, 0.0);
  for (size_t f = 0; f < 20; ++f) {
    double h = 0;
    for (size_t d = 0; d < 24; ++d) h += static_cast<double>(block.w1[1][f * 24 + d]) * x[d];
    for (size_t d = 0; d < 24 && h > 0; ++d) want[d] += 0.5 * h * h * block.w2[1][d * 20 + f];
  }
  for (size_t d = 0; d < 24; ++d) ASSERT_NEAR(ungated[d], want[d], 2e-5);
}

TEST(RunExperts, ATokenDoesNotDependOnItsBatch) {
  ThreadPool one(1), many(4);
  const Block block(40, 33, 6, one);
  const int64_t tokens = 77, top_k = 2;
  const std::vector<float> x = random_floats(tokens * 40, -2, 2, 8);
  const Routes routes = route(random_floats(tokens * 6, -1, 1, 9), 6, top_k, true, one);
  const std::vector<float> all = block.run(x, routes, top_k, many);
  for (int64_t t = 0; t < tokens; ++t) {
    const Routes own{{routes.ids.begin() + t * top_k, routes.ids.begin() + (t + 1) * top_k},
                     {routes.weights.begin() + t * top_k, routes.weights.begin() + (t + 1) * top_k}};
    const std::vector<float> alone = block.run({x.begin() + t * 40, x.begin() + (t + 1) * 40}, own, top_k, one);
    ASSERT_TRUE(std::equal(alone.begin(), alone.end(), all.begin() + t * 40)) << "token " << t;
  }
}

TEST(Moe, RunsVectorised) {
  expect_vectorised(activate());
  expect_vectorised(combine_experts());
}

}  // namespace
}  // namespace coluber
