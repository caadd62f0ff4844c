// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/moe/experts.h"
#include "kernels/moe/silu_mul.h"
#include "kernels/op_test.h"

namespace coluber {
namespace {

TEST(SiluMul, CandidatesAgreeOverSizesAndInPlace) {
  ThreadPool pool(2);
  for (int64_t count : {1, 7, 16, 31, 4096, 20001}) {
    std::vector<float> gate = random_floats(count, -12, 12, 1), up = random_floats(count, -3, 3, 2);
    gate[0] = -90.0f;
    expect_candidates_agree(silu_mul(), kSiluMulTolerance, [&](SiluMulFunction f) {
      std::vector<float> apart(gate.size()), in_place = gate;
      f({gate.data(), up.data(), apart.data(), count}, pool);
      f({in_place.data(), up.data(), in_place.data(), count}, pool);
      return std::vector<OpOutput>{{"apart", apart}, {"in place", in_place}};
    });
  }
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
  route_top_k({logits.data(), tokens, experts, top_k, renormalize, routes.ids.data(), routes.weights.data()}, pool);
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
    run_experts({x.data(), y.data(), static_cast<int64_t>(x.size()) / width, experts, routes.ids.data(),
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
  expect_vectorised(silu_mul());
  expect_vectorised(combine_experts());
}

}  // namespace
}  // namespace coluber
