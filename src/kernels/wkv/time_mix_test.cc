// SPDX-License-Identifier: Apache-2.0
#include "kernels/wkv/time_mix.h"

#include <gtest/gtest.h>

#include "kernels/op_test.h"
#include "kernels/state_slots_test.h"

namespace coluber {
namespace {

class TimeMix : public testing::TestWithParam<int64_t> {
 protected:
  ThreadPool pool_{2};
};

std::vector<OpOutput> shift(int64_t cols, DType dtype, SlotRows rows, bool update, TokenShiftFunction f,
                            ThreadPool& pool) {
  StatePool states(rows.slots, cols, dtype);
  for (int64_t slot : rows.filled) states.fill(slot, static_cast<uint64_t>(slot));
  const std::vector<float> x = random_floats(rows.tokens() * cols, -2, 2, 3);
  std::vector<float> delta(x.size(), 7.0f);
  TokenShiftArgs args;
  args.x = x.data();
  args.delta = delta.data();
  args.state = states.slots(rows.src.data(), rows.dst.data(), rows.has_initial_state.data());
  args.query_start_loc = update ? nullptr : rows.query_start_loc.data();
  args.rows = rows.rows();
  args.cols = cols;
  f(args, pool);
  return {{"delta", delta}, {"state", states.all()}};
}

TEST_P(TimeMix, TokenShiftCandidatesAgreeOnEveryKindOfRow) {
  for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    expect_candidates_agree(token_shift(), kTokenShiftTolerance, [&](TokenShiftFunction f) {
      return shift(GetParam(), dtype, SlotRows::prefill(), false, f, pool_);
    });
    expect_candidates_agree(token_shift(), kTokenShiftTolerance, [&](TokenShiftFunction f) {
      return shift(GetParam(), dtype, SlotRows::decode(), true, f, pool_);
    });
  }
}

TEST_P(TimeMix, TokenMixCandidatesAgree) {
  const int64_t cols = GetParam(), tokens = 9;
  const std::vector<float> x = random_floats(tokens * cols, -2, 2, 1), delta = random_floats(tokens * cols, -2, 2, 2);
  const std::vector<float> mu = random_floats(3 * cols, 0, 1, 3), dynamic = random_floats(tokens * cols, -1, 1, 4);
  expect_candidates_agree(token_mix(), kTokenMixTolerance, [&](TokenMixFunction f) {
    std::vector<float> out(static_cast<size_t>(3 * tokens * cols));
    TokenMixArgs args;
    args.x = x.data();
    args.delta = delta.data();
    args.mixes = 3;
    args.tokens = tokens;
    args.cols = cols;
    for (int64_t j = 0; j < 3; ++j) {
      args.mu[j] = mu.data() + j * cols;
      args.out[j] = out.data() + j * tokens * cols;
    }
    args.dynamic[1] = dynamic.data();
    f(args, pool_);
    return std::vector<OpOutput>{{"out", out}};
  });
}

TEST_P(TimeMix, MapCandidatesAgreeFarOutAndNearZero) {
  const int64_t cols = GetParam(), tokens = 40;
  const std::vector<float> bias = random_floats(cols, -0.1f, 0.1f, 5);
  for (WkvMap map : {WkvMap::kTanh, WkvMap::kSigmoid, WkvMap::kExpNegExp, WkvMap::kBoundedDecay}) {
    std::vector<float> x = random_floats(tokens * cols, -8, map == WkvMap::kExpNegExp ? 2.5f : 8, 6);
    for (size_t i = 0; i < x.size(); i += 3) x[i] *= 0.01f;
    x[0] = 95.0f, x.back() = -95.0f;
    for (const float* b : {static_cast<const float*>(nullptr), bias.data()}) {
      expect_candidates_agree(wkv_map(), kWkvMapTolerance, [&](WkvMapFunction f) {
        std::vector<float> y = x;
        f({map, y.data(), b, y.data(), tokens, cols}, pool_);
        return std::vector<OpOutput>{{"y", y}};
      });
    }
  }
}

TEST_P(TimeMix, HeadNormCandidatesAgree) {
  const int64_t heads = 3, n = GetParam(), tokens = 5, size = tokens * heads * n;
  const std::vector<float> x = random_floats(size, -2, 3, 1), weight = random_floats(heads * n, 0.5f, 1.5f, 2),
                           bias = random_floats(heads * n, -1, 1, 3), r = random_floats(size, -1, 1, 4),
                           k = random_floats(size, -1, 1, 5), v = random_floats(size, -1, 1, 6),
                           r_k = random_floats(heads * n, -1, 1, 7), gate = random_floats(size, -4, 4, 8);
  for (HeadGate kind : {HeadGate::kNone, HeadGate::kPlain, HeadGate::kSilu, HeadGate::kSigmoid}) {
    for (bool bonus : {false, true}) {
      expect_candidates_agree(head_norm(), kHeadNormTolerance, [&](HeadNormFunction f) {
        std::vector<float> y = x;
        HeadNormArgs args;
        args.x = args.y = y.data();
        args.weight = weight.data();
        if (bonus) args.bias = bias.data(), args.r = r.data(), args.k = k.data(), args.v = v.data();
        args.r_k = r_k.data();
        args.gate = gate.data();
        args.gate_stride = heads * n;
        args.gate_kind = kind;
        args.tokens = tokens;
        args.num_heads = heads;
        args.head_dim = n;
        f(args, pool_);
        return std::vector<OpOutput>{{"y", y}};
      });
    }
  }
}

TEST_P(TimeMix, PrepareCandidatesAgree) {
  const int64_t heads = 2, n = GetParam(), tokens = 7, size = tokens * heads * n;
  const std::vector<float> k = random_floats(size, -2, 2, 1), a = random_floats(size, 0, 1, 2),
                           k_k = random_floats(heads * n, 0.5f, 1, 3), k_a = random_floats(heads * n, 0, 1, 4),
                           v = random_floats(size, -2, 2, 5), gate = random_floats(size, 0, 1, 6),
                           first = random_floats(size, -2, 2, 7);
  for (bool mixed : {false, true}) {
    expect_candidates_agree(wkv7_prepare(), kWkv7PrepareTolerance, [&](Wkv7PrepareFunction f) {
      std::vector<float> out_k = k, out_a = a, out_v = v, kk(static_cast<size_t>(size));
      Wkv7PrepareArgs args;
      args.k = out_k.data();
      args.a = out_a.data();
      args.kk = kk.data();
      args.k_k = k_k.data();
      args.k_a = k_a.data();
      args.eps = mixed ? 1e-6f : 0.0f;
      args.v = out_v.data();
      args.v_gate = mixed ? gate.data() : nullptr;
      args.v_first = first.data();
      args.tokens = tokens;
      args.num_heads = heads;
      args.head_dim = n;
      f(args, pool_);
      return std::vector<OpOutput>{{"k", out_k}, {"b", out_a}, {"kk", kk}, {"v", out_v}};
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, TimeMix, testing::Values(1, 7, 16, 20, 64, 300));

TEST(TimeMixSelection, MainPathIsVectorised) {
  expect_vectorised(token_shift());
  expect_vectorised(token_mix());
  expect_vectorised(wkv_map());
  expect_vectorised(head_norm());
  expect_vectorised(wkv7_prepare());
}

TEST(TimeMixKey, OfZerosHasNoDirectionAndNoNan) {
  ThreadPool pool(1);
  std::vector<float> k(16, 0.0f), a(16, 0.5f), kk(16), ones(16, 1.0f);
  Wkv7PrepareArgs args;
  args.k = k.data();
  args.a = a.data();
  args.kk = kk.data();
  args.k_k = args.k_a = ones.data();
  args.tokens = args.num_heads = 1;
  args.head_dim = 16;
  wkv7_prepare()(args, pool);
  for (float value : kk) EXPECT_EQ(value, 0.0f);
  for (float value : a) EXPECT_EQ(value, 0.0f);
}

}  // namespace
}  // namespace coluber
