// SPDX-License-Identifier: Apache-2.0
#include "kernels/linear/gated_linear_attention_prefill_cuda.h"

#include "kernels/linear/gated_linear_attention.h"
#include "kernels/prefill_cuda_test.h"

namespace coluber {
namespace {

constexpr int64_t kChunk = 64;

struct Problem {
  int64_t heads, group, key_dim, value_dim;
  bool slopes = true;
  DType state = DType::kFloat32;
  float most_slope = 3;
  int64_t kv_heads() const { return heads / group; }
};

struct Inputs {
  Problem p;
  std::vector<float> q, k, v, slopes, log_decay;

  Inputs(const Problem& p, int64_t tokens)
      : p(p),
        q(random_activations(DType::kBFloat16, tokens * p.heads * p.key_dim, -1, 1, 1)),
        k(random_activations(DType::kBFloat16, tokens * p.kv_heads() * p.key_dim, -1, 1, 2)),
        v(random_activations(DType::kBFloat16, tokens * p.kv_heads() * p.value_dim, -1, 1, 3)),
        slopes(random_floats(p.heads, 0, p.most_slope, 4)),
        log_decay(random_floats(tokens * p.kv_heads(), -p.most_slope, 0, 5)) {}

  template <typename Args>
  void set_sizes(int64_t rows, Args& args) const {
    args.q_head_stride = args.k_head_stride = args.key_dim = p.key_dim;
    args.v_head_stride = args.value_dim = p.value_dim;
    args.q_stride = p.heads * p.key_dim;
    args.k_stride = p.kv_heads() * p.key_dim;
    args.v_stride = p.kv_heads() * p.value_dim;
    args.o_stride = p.heads * p.value_dim;
    args.group = p.group;
    args.decay_stride = p.kv_heads();
    args.scale = 0.3f;
    args.rows = rows;
    args.num_heads = p.heads;
  }
  std::vector<float> reference(const SlotRows& rows, StatePool& states) const {
    ThreadPool pool(1);
    Workspace workspace;
    std::vector<float> o(static_cast<size_t>(rows.tokens() * p.heads * p.value_dim), 77.0f);
    GatedLinearAttentionArgs args;
    set_sizes(rows.rows(), args);
    args.q = q.data();
    args.k = k.data();
    args.v = v.data();
    args.slopes = p.slopes ? slopes.data() : nullptr;
    args.log_decay = p.slopes ? nullptr : log_decay.data();
    args.o = o.data();
    args.state = states.slots(rows.src.data(), rows.dst.data(), rows.has_initial_state.data());
    args.query_start_loc = rows.query_start_loc.data();
    gated_linear_attention().reference().function(args, pool, workspace);
    return o;
  }
};

class LinearPrefillCuda : public CudaTest {
 protected:
  std::vector<float> run(const Inputs& in, const SlotRows& rows, int64_t first_token, DeviceStates& held) {
    Uploads uploads(*device_);
    const auto from = [&](const std::vector<float>& values, int64_t width) {
      return uploads.add(DType::kBFloat16, {values.begin() + first_token * width, values.end()});
    };
    GatedLinearAttentionPrefillCudaArgs args;
    in.set_sizes(rows.rows(), args);
    args.q = from(in.q, args.q_stride);
    args.k = from(in.k, args.k_stride);
    args.v = from(in.v, args.v_stride);
    args.slopes = in.p.slopes ? uploads.add(in.slopes) : nullptr;
    args.log_decay = in.p.slopes ? nullptr : uploads.add(in.log_decay) + first_token * args.decay_stride;
    args.query_start_loc = uploads.add(rows.query_start_loc);
    return launch(kGatedLinearAttentionPrefillCuda, args, &GatedLinearAttentionPrefillCudaArgs::o,
                  static_cast<size_t>(rows.tokens() * args.o_stride), held, rows);
  }
  // Returns y and the states.
  std::vector<float> expect_agrees(const Problem& p, const SlotRows& rows, bool zeros = false) {
    const Inputs in(p, rows.tokens());
    const int64_t elements = p.heads * p.key_dim * p.value_dim;
    StatePool states(rows.slots, elements, DType::kFloat32);
    fill_states(states, rows, zeros);
    DeviceStates held(p.state, p.heads * p.key_dim, p.value_dim, rows.slots, states);
    const std::vector<float> want = in.reference(rows, states);
    std::vector<float> o = run(in, rows, 0, held);
    const std::vector<float> at_rest = held.all();
    expect_small_error(o, want, rows.query_start_loc, p.heads * p.value_dim,
                       with_stored_state(kLinearPrefillOutputError, p.state), "o");
    expect_small_error(at_rest, states.all(), slot_starts(rows.slots), elements,
                       with_stored_state(kLinearPrefillStateError, p.state), "states");
    o.insert(o.end(), at_rest.begin(), at_rest.end());
    return o;
  }
};

TEST_F(LinearPrefillCuda, AgreesWithTheReferenceOnEveryKindOfRow) {
  for (DType state : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (Problem p :
         {Problem{4, 1, 128, 128}, Problem{6, 2, 64, 96, false}, Problem{2, 2, 120, 8},
          Problem{3, 1, 16, 72, false, DType::kFloat32, 0.01f}, Problem{2, 1, 128, 64, true, DType::kFloat32, 0.02f}}) {
      p.state = state;
      SCOPED_TRACE(testing::Message() << p.heads << " heads, " << p.key_dim << " x " << p.value_dim << ", "
                                      << dtype_name(state));
      expect_agrees(p, prefill_rows(kChunk));
    }
  }
}

TEST_F(LinearPrefillCuda, PackedRowsAreRowsAloneBitForBit) {
  const SlotRows rows = prefill_rows(kChunk);
  const Inputs in({4, 2, 128, 128, false}, rows.tokens());
  StatePool states(rows.slots, 4 * 128 * 128, DType::kFloat32);
  fill_states(states, rows, false);
  expect_packed_is_alone(
      rows, DeviceStates(DType::kFloat32, 4 * 128, 128, rows.slots, states),
      [&](const SlotRows& some, int64_t first_token, DeviceStates& held) { return run(in, some, first_token, held); });
}

TEST_F(LinearPrefillCuda, NoStateIsAStateOfZerosBitForBit) {
  SlotRows without, with;
  for (int64_t length : {1, 130, 300}) {
    without.add(length, false, false);
    with.add(length, true, false);
  }
  const Problem p = {4, 1, 64, 64};
  expect_same_bits(expect_agrees(p, without), expect_agrees(p, with, true));
}

}  // namespace
}  // namespace coluber
