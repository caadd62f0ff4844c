// SPDX-License-Identifier: Apache-2.0
#include "kernels/delta/delta_rule_cuda.h"

#include "kernels/cuda_test.h"
#include "kernels/delta/delta_rule.h"

namespace coluber {
namespace {

enum class Gate { kNone, kHead, kChannel, kBoundedChannel };

struct Problem {
  int64_t k_heads, v_heads, key_dim, value_dim;
  Gate gate = Gate::kHead;
  bool beta = true;
  float norm_eps = 1e-6f;
  DType activations = DType::kFloat32, state = DType::kFloat32;

  bool per_channel() const { return gate == Gate::kChannel || gate == Gate::kBoundedChannel; }
  int64_t gates() const { return v_heads * (per_channel() ? key_dim : 1); }
};

struct Inputs {
  std::vector<float> q, k, v, gate, bias, rate, beta;

  Inputs(const Problem& p, int64_t rows)
      : q(random_activations(p.activations, rows * p.k_heads * p.key_dim, -1, 1, 1)),
        k(random_activations(p.activations, rows * p.k_heads * p.key_dim, -1, 1, 2)),
        v(random_activations(p.activations, rows * p.v_heads * p.value_dim, -1, 1, 3)),
        gate(random_activations(p.activations, rows * p.gates(), -4, 3, 4)),
        bias(random_floats(p.gates(), -1, 1, 5)),
        rate(random_floats(p.v_heads, 0.01f, 3, 6)),
        beta(random_activations(p.activations, rows * p.v_heads, -3, 3, 7)) {
    // Without norms keys stay short, or the state grows without bound.
    if (p.norm_eps == 0)
      for (float& value : k) value /= 16;
  }
};

template <typename Args>
void set_sizes(const Problem& p, int64_t rows, Args& args) {
  args.q_stride = args.k_stride = p.k_heads * p.key_dim;
  args.v_stride = args.y_stride = p.v_heads * p.value_dim;
  args.gate_stride = p.gates();
  args.gate_per_channel = p.per_channel();
  args.gate_lower_bound = p.gate == Gate::kBoundedChannel ? -5.0f : 0.0f;
  args.beta_stride = args.num_v_heads = p.v_heads;
  args.beta_scale = p.beta ? 2.0f : 1.0f;
  args.norm_eps = p.norm_eps;
  args.scale = 0.3f;
  args.rows = rows;
  args.num_k_heads = p.k_heads;
  args.key_dim = p.key_dim;
  args.value_dim = p.value_dim;
}

std::vector<float> reference(const Problem& p, const Inputs& in, const SlotRows& rows, StatePool& states) {
  ThreadPool pool(1);
  Workspace workspace;
  std::vector<float> y(in.v.size(), 77.0f);
  DeltaRuleArgs args;
  set_sizes(p, rows.rows(), args);
  args.q = in.q.data();
  args.k = in.k.data();
  args.v = in.v.data();
  if (p.gate != Gate::kNone) {
    args.gate = in.gate.data();
    args.gate_bias = in.bias.data();
    args.gate_rate = in.rate.data();
  }
  args.beta = p.beta ? in.beta.data() : nullptr;
  args.y = y.data();
  args.state = states.slots(rows.src.data(), rows.dst.data(), rows.has_initial_state.data());
  delta_rule_ref(args, pool, workspace);
  return y;
}

class DeltaRuleCuda : public CudaTest {
 protected:
  // Returns y and the states.
  std::vector<float> expect_agrees(const Problem& p, const SlotRows& rows, bool zeros = false, int64_t stride = 0) {
    const Inputs in(p, rows.rows());
    const int64_t lines = p.v_heads * p.value_dim;
    StatePool states(rows.slots, lines * p.key_dim, DType::kFloat32);
    fill_states(states, rows, zeros);
    DeviceStates held(p.state, lines, p.key_dim, rows.slots, states, [p](int64_t line, int64_t n) {
      return line / p.value_dim * p.value_dim * p.key_dim +
             delta_state_index(line % p.value_dim, n, p.value_dim, p.key_dim);
    });
    const std::vector<float> want = reference(p, in, rows, states);

    Uploads uploads(*device_);
    DeltaRuleCudaArgs args;
    set_sizes(p, rows.rows(), args);
    args.activations = p.activations;
    args.q = uploads.add(p.activations, in.q);
    args.k = uploads.add(p.activations, in.k);
    args.v = uploads.add(p.activations, in.v);
    if (p.gate != Gate::kNone) {
      args.gate = uploads.add(p.activations, in.gate);
      args.gate_bias = uploads.add(in.bias);
      args.gate_rate = uploads.add(in.rate);
    }
    args.beta = p.beta ? uploads.add(p.activations, in.beta) : nullptr;
    args.scale_offset_bytes = held.scale_offset;
    std::vector<float> y = launch(kDeltaRuleUpdateCuda, args, &DeltaRuleCudaArgs::y, want.size(), held, rows, stride);
    const Tolerance tolerance = with_device_state_rounding(kDeltaRuleCudaTolerance, p.state);
    const std::vector<float> left = held.all();
    expect_close(left, states.all(), tolerance, "states");
    expect_close(y, want, with_activation_rounding(tolerance, p.activations), "y");
    y.insert(y.end(), left.begin(), left.end());
    return y;
  }
};

TEST_F(DeltaRuleCuda, AgreesWithTheReferenceOnEveryKindOfRow) {
  for (DType activations : {DType::kFloat32, DType::kBFloat16}) {
    for (DType state : {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kInt16, DType::kInt8}) {
      for (Problem p : {Problem{4, 8, 128, 128}, Problem{3, 3, 128, 64, Gate::kChannel},
                        Problem{2, 4, 64, 32, Gate::kBoundedChannel}, Problem{2, 2, 32, 48, Gate::kNone, true, 0},
                        Problem{1, 3, 256, 20, Gate::kHead, false}, Problem{2, 2, 16, 7, Gate::kChannel},
                        Problem{1, 2, 33, 65, Gate::kChannel}, Problem{1, 1, 300, 12}, Problem{2, 6, 10, 9}}) {
        p.activations = activations;
        p.state = state;
        SCOPED_TRACE(testing::Message() << p.k_heads << " and " << p.v_heads << " heads, " << p.key_dim << " x "
                                        << p.value_dim << ", " << dtype_name(activations) << ", " << dtype_name(state));
        expect_agrees(p, SlotRows::decode());
      }
    }
  }
}

TEST_F(DeltaRuleCuda, ManyRowsInShuffledSlots) {
  expect_agrees({8, 16, 128, 128, Gate::kHead, true, 1e-6f, DType::kBFloat16, DType::kFloat32}, many_rows());
}

TEST_F(DeltaRuleCuda, NoStateIsAStateOfZerosBitForBit) {
  const Problem p = {2, 4, 128, 64, Gate::kChannel};
  expect_same_bits(expect_agrees(p, rows_without_states()), expect_agrees(p, rows_with_states(), true));
}

TEST_F(DeltaRuleCuda, SlotsLieFurtherApartThan32BitsReach) {
  expect_agrees({2, 4, 128, 64, Gate::kChannel}, far_rows(), false, kFarStride);
}

}  // namespace
}  // namespace coluber
