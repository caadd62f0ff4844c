// SPDX-License-Identifier: Apache-2.0
#include "kernels/delta/delta_prefill_cuda.h"

#include "kernels/delta/delta_rule.h"
#include "kernels/prefill_cuda_test.h"

namespace coluber {
namespace {

enum class Gate { kNone, kHead, kBounded };

struct Problem {
  int64_t k_heads, v_heads, key_dim, value_dim;
  Gate gate = Gate::kHead;
  bool beta = true;
  DType state = DType::kFloat32;
  float norm_eps = 1e-6f, least_rate = 0.01f, most_rate = 3;
};

struct Inputs {
  Problem p;
  std::vector<float> q, k, v, gate, bias, rate, beta;

  Inputs(const Problem& p, int64_t tokens)
      : p(p),
        q(random_activations(DType::kBFloat16, tokens * p.k_heads * p.key_dim, -1, 1, 1)),
        k(random_activations(DType::kBFloat16, tokens * p.k_heads * p.key_dim, -1, 1, 2)),
        v(random_activations(DType::kBFloat16, tokens * p.v_heads * p.value_dim, -1, 1, 3)),
        gate(random_activations(DType::kBFloat16, tokens * p.v_heads, -4, 3, 4)),
        bias(random_floats(p.v_heads, -1, 1, 5)),
        rate(random_floats(p.v_heads, p.least_rate, p.most_rate, 6)),
        beta(random_activations(DType::kBFloat16, tokens * p.v_heads, -3, 3, 7)) {
    // Without norms keys stay short, or the state grows without bound.
    if (p.norm_eps == 0)
      for (float& value : k) value /= 16;
  }
  int64_t lines() const { return p.v_heads * p.value_dim; }

  template <typename Args>
  void set_sizes(int64_t rows, Args& args) const {
    args.q_stride = args.k_stride = p.k_heads * p.key_dim;
    args.v_stride = args.y_stride = lines();
    args.gate_stride = args.beta_stride = args.num_v_heads = p.v_heads;
    args.gate_lower_bound = p.gate == Gate::kBounded ? -5.0f : 0.0f;
    args.beta_scale = p.beta ? 1.5f : 1.0f;
    args.norm_eps = p.norm_eps;
    args.scale = 0.3f;
    args.rows = rows;
    args.num_k_heads = p.k_heads;
    args.key_dim = p.key_dim;
    args.value_dim = p.value_dim;
  }
  std::vector<float> reference(const SlotRows& rows, StatePool& states, const StateExports& exports) const {
    ThreadPool pool(1);
    Workspace workspace;
    std::vector<float> y(v.size(), 77.0f);
    DeltaRuleArgs args;
    set_sizes(rows.rows(), args);
    args.q = q.data();
    args.k = k.data();
    args.v = v.data();
    if (p.gate != Gate::kNone) {
      args.gate = gate.data();
      args.gate_bias = bias.data();
      args.gate_rate = rate.data();
    }
    args.beta = p.beta ? beta.data() : nullptr;
    args.y = y.data();
    args.state = states.slots(rows.src.data(), rows.dst.data(), rows.has_initial_state.data());
    args.query_start_loc = rows.query_start_loc.data();
    args.exports = exports;
    delta_rule_ref(args, pool, workspace);
    return y;
  }
};

class DeltaPrefillCuda : public CudaTest {
 protected:
  DeviceStates on_device(const Problem& p, const SlotRows& rows, const StatePool& states) const {
    return {p.state, p.v_heads * p.value_dim, p.key_dim, rows.slots, states, [p](int64_t line, int64_t n) {
              return line / p.value_dim * p.value_dim * p.key_dim +
                     delta_state_index(line % p.value_dim, n, p.value_dim, p.key_dim);
            }};
  }
  std::vector<float> run(const Inputs& in, const SlotRows& rows, int64_t first_token, DeviceStates& held,
                         const LeftStates* left = nullptr) {
    Uploads uploads(*device_);
    const auto from = [&](const std::vector<float>& values, int64_t width) {
      return uploads.add(DType::kBFloat16, {values.begin() + first_token * width, values.end()});
    };
    DeltaPrefillCudaArgs args;
    in.set_sizes(rows.rows(), args);
    args.q = from(in.q, args.q_stride);
    args.k = from(in.k, args.k_stride);
    args.v = from(in.v, args.v_stride);
    if (in.p.gate != Gate::kNone) {
      args.gate = from(in.gate, args.gate_stride);
      args.gate_bias = uploads.add(in.bias);
      args.gate_rate = uploads.add(in.rate);
    }
    args.beta = in.p.beta ? from(in.beta, args.beta_stride) : nullptr;
    args.query_start_loc = uploads.add(rows.query_start_loc);
    args.tokens = rows.tokens();
    if (left != nullptr) args.exports = left->on_device(uploads);
    args.scratch = uploads.add(std::vector<uint8_t>(static_cast<size_t>(delta_prefill_scratch_bytes(args)), 0xff));
    return launch(kDeltaPrefillCuda, args, &DeltaPrefillCudaArgs::y, static_cast<size_t>(rows.tokens() * in.lines()),
                  held, rows);
  }
  // Returns y and the states.
  std::vector<float> expect_agrees(const Problem& p, SlotRows rows, bool zeros = false) {
    const LeftStates left(rows, kDeltaChunk);
    const Inputs in(p, rows.tokens());
    StatePool states(rows.slots, in.lines() * p.key_dim, DType::kFloat32);
    fill_states(states, rows, zeros);
    DeviceStates held = on_device(p, rows, states);
    const std::vector<float> want = in.reference(rows, states, left.host());
    std::vector<float> y = run(in, rows, 0, held, &left);
    const std::vector<float> at_rest = held.all();
    const double bound = with_stored_state(kDeltaPrefillError, p.state);
    expect_small_error(y, want, rows.query_start_loc, in.lines(), bound, "y");
    expect_small_error(at_rest, states.all(), slot_starts(rows.slots), in.lines() * p.key_dim, bound, "states");
    y.insert(y.end(), at_rest.begin(), at_rest.end());
    return y;
  }
};

TEST_F(DeltaPrefillCuda, AgreesWithTheReferenceOnEveryKindOfRow) {
  for (DType state : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (Problem p :
         {Problem{2, 4, 128, 128}, Problem{3, 3, 64, 40, Gate::kBounded}, Problem{1, 3, 96, 72},
          Problem{2, 2, 32, 48, Gate::kNone, true, DType::kFloat32, 0}, Problem{1, 2, 16, 8, Gate::kHead, false}}) {
      p.state = state;
      SCOPED_TRACE(testing::Message() << p.k_heads << " and " << p.v_heads << " heads, " << p.key_dim << " x "
                                      << p.value_dim << ", " << dtype_name(state));
      expect_agrees(p, prefill_rows(kDeltaChunk));
    }
  }
}

TEST_F(DeltaPrefillCuda, DecaysNearZeroAndNearOne) {
  for (float rate : {1e-6f, 1e-3f, 300.0f})
    expect_agrees({2, 2, 128, 64, Gate::kHead, true, DType::kFloat32, 1e-6f, rate, rate * 2},
                  prefill_rows(kDeltaChunk));
}

TEST_F(DeltaPrefillCuda, ThousandsOfTokens) {
  SlotRows rows;
  rows.add(4097, true, false);
  rows.add(3000, false, true);
  expect_agrees({1, 2, 128, 128}, rows);
}

TEST_F(DeltaPrefillCuda, PackedRowsAreRowsAloneBitForBit) {
  const SlotRows rows = prefill_rows(kDeltaChunk);
  const Inputs in({2, 8, 128, 128}, rows.tokens());  // together in wide blocks, alone in narrow ones
  StatePool states(rows.slots, in.lines() * 128, DType::kFloat32);
  fill_states(states, rows, false);
  expect_packed_is_alone(
      rows, on_device(in.p, rows, states),
      [&](const SlotRows& some, int64_t first_token, DeviceStates& held) { return run(in, some, first_token, held); });
}

TEST_F(DeltaPrefillCuda, NoStateIsAStateOfZerosBitForBit) {
  SlotRows without, with;
  for (int64_t length : {1, 130, 300}) {
    without.add(length, false, false);
    with.add(length, true, false);
  }
  const Problem p = {2, 4, 128, 64};
  expect_same_bits(expect_agrees(p, without), expect_agrees(p, with, true));
}

}  // namespace
}  // namespace coluber
