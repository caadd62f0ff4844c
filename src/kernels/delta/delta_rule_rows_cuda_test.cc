// SPDX-License-Identifier: Apache-2.0
#include "kernels/delta/delta_rule.h"
#include "kernels/norm/sum_norm.h"
#include "kernels/prefill_cuda_test.h"

namespace coluber {
namespace {

struct Problem {
  int64_t k_heads, v_heads, key_dim, value_dim;
  bool gate = true, by_channel = false;
  float lower_bound = 0;
  bool beta = true;
  float norm_eps = 1e-6f;
  DType state = DType::kFloat32;
  int64_t channels() const { return v_heads * (by_channel ? key_dim : 1); }
  int64_t width() const { return v_heads * value_dim; }
};

const Problem kProblems[] = {
    {2, 4, 16, 16},
    {1, 2, 128, 40, true, false, 0, true, 1e-6f, DType::kBFloat16},
    {3, 3, 70, 7, true, true},
    {2, 2, 128, 128, true, true, -5.0f},
    {1, 1, 33, 19, false, false, 0, true, 0},
    {1, 1, 200, 24, false, false, 0, false, 1e-6f, DType::kFloat16},
    {1, 1, 512, 6, true, true},
};

struct Inputs {
  std::vector<float> q, k, v, gate, bias, rate, beta;
  Inputs(const Problem& p, int64_t tokens)
      : q(random_floats(tokens * p.k_heads * p.key_dim, -0.2f, 0.2f, 1)),
        k(random_floats(tokens * p.k_heads * p.key_dim, -0.2f, 0.2f, 2)),
        v(random_floats(tokens * p.width(), -1, 1, 3)),
        gate(random_floats(tokens * p.channels(), -3, 3, 4)),
        bias(random_floats(p.channels(), -1, 1, 5)),
        rate(random_floats(p.v_heads, 0, 1, 6)),
        beta(random_floats(tokens * p.v_heads, -3, 3, 7)) {}
};

template <typename Place>
DeltaRuleArgs args_of(const Problem& p, const Inputs& in, Place place) {
  DeltaRuleArgs args;
  args.q = place(in.q);
  args.k = place(in.k);
  args.v = place(in.v);
  args.q_stride = args.k_stride = p.k_heads * p.key_dim;
  args.v_stride = args.y_stride = p.width();
  if (p.gate) {
    args.gate = place(in.gate);
    args.gate_bias = place(in.bias);
    args.gate_rate = place(in.rate);
  }
  args.gate_stride = p.channels();
  args.gate_per_channel = p.by_channel;
  args.gate_lower_bound = p.lower_bound;
  if (p.beta) args.beta = place(in.beta);
  args.beta_stride = p.v_heads;
  args.beta_scale = p.beta ? 2.0f : 0.5f;
  args.norm_eps = p.norm_eps;
  args.scale = 0.4f;
  args.num_k_heads = p.k_heads;
  args.num_v_heads = p.v_heads;
  args.key_dim = p.key_dim;
  args.value_dim = p.value_dim;
  return args;
}

class DeltaRuleRowsCuda : public CudaTest {
 protected:
  void expect_like_reference(const Problem& p, SlotRows rows, bool prefill) {
    const Inputs in(p, rows.tokens());
    const LeftStates left(rows, 20);
    StatePool states(rows.slots, p.width() * p.key_dim, p.state);
    fill_states(states, rows, false);
    DeviceStates held(p.state, p.width(), p.key_dim, rows.slots, states);
    std::vector<float> want(static_cast<size_t>(rows.tokens() * p.width()), 77.0f), got = want;
    DeltaRuleArgs args = args_of(p, in, [](const auto& values) { return values.data(); });
    args.rows = rows.rows();
    args.y = want.data();
    args.state = states.slots(rows.src.data(), rows.dst.data(), rows.has_initial_state.data());
    args.state.by_token = true;
    if (prefill) args.query_start_loc = rows.query_start_loc.data(), args.exports = left.host();
    ThreadPool pool(1);
    Workspace workspace;
    delta_rule_ref(args, pool, workspace);
    Uploads uploads(*device_);
    StatesOnDevice memory(*device_, held, 0);
    memory.put();
    args = args_of(p, in, [&](const auto& values) { return uploads.add(values); });
    args.rows = rows.rows();
    args.y = uploads.add(got);
    args.state = memory.slots(uploads, rows);
    if (prefill) args.query_start_loc = uploads.add(rows.query_start_loc), args.exports = left.on_device(uploads);
    run(delta_rule(), args);
    uploads.fetch(args.y, got);
    held.bytes = memory.get();
    const Tolerance tolerance = with_state_rounding(kDeltaRuleTolerance, p.state);
    expect_close(got, want, tolerance, "y");
    expect_close(held.all(), states.all(), tolerance, "states");
  }
};

TEST_F(DeltaRuleRowsCuda, AgreesWithTheReferenceOnEveryKindOfRowAndGate) {
  for (const Problem& p : kProblems) {
    SCOPED_TRACE(::testing::Message() << p.k_heads << " and " << p.v_heads << " heads, " << p.key_dim << " by "
                                      << p.value_dim);
    expect_like_reference(p, SlotRows::prefill(), true);
    expect_like_reference(p, SlotRows::decode(), false);
  }
}

TEST_F(DeltaRuleRowsCuda, KeysAreNormedByTheirSumAsOnTheProcessor) {
  std::vector<float> want = random_floats(40 * 100, -1, 1, 1), got = want;
  std::fill_n(want.begin() + 100, 16, 0.0f);
  got = want;
  ThreadPool pool(1);
  Uploads uploads(*device_);
  SumNormArgs args{want.data(), 100, 40, 6, 16, 1e-6f};
  sum_norm()(args, pool);
  args.x = uploads.add(got);
  run(sum_norm(), args);
  uploads.fetch(args.x, got);
  expect_close(got, want, kSumNormTolerance, "x");
}

}  // namespace
}  // namespace coluber
