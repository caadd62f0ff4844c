// SPDX-License-Identifier: Apache-2.0
#include "kernels/delta/delta_rule.h"

#include <gtest/gtest.h>

#include "kernels/linear/linear_run_test.h"
#include "kernels/op_test.h"
#include "kernels/state_slots_test.h"

namespace coluber {
namespace {

enum class Decay { kNone, kHead, kChannel, kBounded };

struct Problem {
  int64_t key_heads, value_heads, key_dim, value_dim;
  Decay decay = Decay::kChannel;
  DType dtype = DType::kFloat32;
  float norm_eps = 1e-6f;
  bool beta = true;
};

struct Inputs {
  Problem p;
  std::vector<float> q, k, v, gate, bias, rate, beta;

  Inputs(const Problem& problem, int64_t tokens)
      : p(problem),
        q(random_floats(tokens * p.key_heads * p.key_dim, -1, 1, 1)),
        k(random_floats(tokens * p.key_heads * p.key_dim, -1, 1, 2)),
        v(random_floats(tokens * p.value_heads * p.value_dim, -1, 1, 3)),
        gate(random_floats(tokens * gate_width(), -4, 2, 4)),
        bias(random_floats(gate_width(), -1, 1, 5)),
        rate(random_floats(p.value_heads, 0.05f, 2, 6)),
        beta(random_floats(tokens * p.value_heads, -3, 3, 7)) {
    // Without a norm the rule diverges for long keys.
    if (p.norm_eps == 0) {
      for (float& x : k) x /= std::sqrt(static_cast<float>(p.key_dim));
    }
  }
  int64_t gate_width() const { return p.value_heads * (p.decay == Decay::kHead ? 1 : p.key_dim); }
  int64_t width() const { return p.value_heads * p.value_dim; }
  int64_t state_elements() const { return width() * p.key_dim; }

  DeltaRuleArgs args(const StateSlots& state, const int32_t* query_start_loc, int64_t rows, std::vector<float>& y,
                     int64_t first) const {
    DeltaRuleArgs a;
    a.q_stride = a.k_stride = p.key_heads * p.key_dim;
    a.q = q.data() + first * a.q_stride;
    a.k = k.data() + first * a.k_stride;
    a.v_stride = width();
    a.v = v.data() + first * a.v_stride;
    if (p.decay != Decay::kNone) {
      a.gate = gate.data() + first * gate_width();
      a.gate_bias = bias.data();
      a.gate_rate = rate.data();
    }
    a.gate_stride = gate_width();
    a.gate_per_channel = p.decay != Decay::kHead;
    a.gate_lower_bound = p.decay == Decay::kBounded ? -5.0f : 0.0f;
    a.beta = p.beta ? beta.data() + first * p.value_heads : nullptr;
    a.beta_stride = p.value_heads;
    a.beta_scale = p.decay == Decay::kHead ? 2.0f : 1.0f;
    a.norm_eps = p.norm_eps;
    a.scale = 0.3f;
    a.y = y.data() + first * width();
    a.y_stride = width();
    a.state = state;
    a.query_start_loc = query_start_loc;
    a.rows = rows;
    a.num_k_heads = p.key_heads;
    a.num_v_heads = p.value_heads;
    a.key_dim = p.key_dim;
    a.value_dim = p.value_dim;
    check_delta_rule(a);
    return a;
  }
};

Tolerance tolerance_of(DType dtype) {
  Tolerance tolerance = kDeltaRuleTolerance;
  if (dtype != DType::kFloat32) tolerance.relative = 1.0 / 128, tolerance.of_rms = 1.0 / 512;
  return tolerance;
}

TEST(DeltaRule, CandidatesAgreeOnEveryKindOfRow) {
  ThreadPool pool(2);
  for (const Problem& p :
       {Problem{4, 4, 16, 16}, Problem{2, 2, 128, 128}, Problem{2, 4, 16, 24, Decay::kHead},
        Problem{5, 5, 12, 12, Decay::kBounded}, Problem{1, 3, 33, 40, Decay::kHead}, Problem{3, 3, 20, 7, Decay::kNone},
        Problem{2, 2, 24, 96, Decay::kNone, DType::kFloat32, 0}, Problem{2, 4, 32, 64, Decay::kHead, DType::kBFloat16},
        Problem{2, 2, 16, 20, Decay::kChannel, DType::kFloat16},
        Problem{2, 2, 16, 16, Decay::kHead, DType::kFloat32, 1e-6f, false}}) {
    SCOPED_TRACE(::testing::Message() << p.value_heads << " heads of " << p.key_dim << " by " << p.value_dim);
    expect_candidates_agree(delta_rule(), tolerance_of(p.dtype),
                            [&](DeltaRuleFunction f) { return run_rows<Inputs>(p, SlotRows::prefill(), f, pool); });
    expect_candidates_agree(delta_rule(), tolerance_of(p.dtype), [&](DeltaRuleFunction f) {
      return run_rows<Inputs>(p, SlotRows::decode(), f, pool, true);
    });
  }
}

TEST(DeltaRule, RunsVectorised) { expect_vectorised(delta_rule()); }

TEST(DeltaRule, CutsOfAPromptAndThreadsChangeNoBit) {
  ThreadPool one(1), many(7);
  for (const auto& candidate : delta_rule().candidates()) {
    if (candidate.isa > active_isa() || candidate.isa == Isa::kRef) continue;
    for (const Problem& p : {Problem{2, 4, 48, 80, Decay::kHead}, Problem{1, 1, 16, 20}}) {
      const Inputs inputs(p, 70);
      const std::vector<float> whole = run_pieces(inputs, 70, 70, candidate.function, one);
      for (int64_t piece : {1, 3, 7, 64})
        EXPECT_EQ(whole, run_pieces(inputs, 70, piece, candidate.function, many, piece == 1))
            << candidate.name << " pieces of " << piece;
    }
  }
}

TEST(DeltaRule, StatesInsideRowsAreThoseOfShorterRows) {
  ThreadPool pool(2);
  for (const auto function : {delta_rule().selected().function, delta_rule().reference().function})
    for (const Problem& p : {Problem{2, 4, 48, 80, Decay::kHead}, Problem{1, 1, 16, 20},
                             Problem{2, 2, 16, 32, Decay::kChannel, DType::kBFloat16}}) {
      const Inputs inputs(p, 90);
      expect_exports_are_ends_of_shorter_rows(
          [&](const std::vector<int32_t>& loc, const StateExports& exports, std::vector<float>& y) {
            return run_two_rows(inputs, p.dtype, function, pool, loc, exports, y);
          });
    }
}

TEST(DeltaRule, DecaysNearZeroAndOneStayFinite) {
  ThreadPool pool(1);
  Inputs inputs({2, 2, 16, 16}, 300);
  for (size_t i = 0; i < inputs.gate.size(); ++i) inputs.gate[i] = i % 3 == 0 ? 400.0f : -60.0f;
  for (float value : run_pieces(inputs, 300, 300, delta_rule().selected().function, pool))
    ASSERT_TRUE(std::isfinite(value));
}

}  // namespace
}  // namespace coluber
