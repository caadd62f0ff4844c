// SPDX-License-Identifier: Apache-2.0
#include "kernels/linear/gated_linear_attention_cuda.h"

#include "kernels/cuda_test.h"
#include "kernels/linear/gated_linear_attention.h"

namespace coluber {
namespace {

enum class Decay { kSlopes, kToken, kChannel };

struct Problem {
  int64_t heads, group, key_dim, value_dim;
  Decay decay = Decay::kSlopes;
  DType activations = DType::kFloat32, state = DType::kFloat32;
  int64_t kv_heads() const { return heads / group; }
};

struct Inputs {
  std::vector<float> q, k, v, slopes, log_decay, decay;

  Inputs(const Problem& p, int64_t rows)
      : q(random_activations(p.activations, rows * p.heads * p.key_dim, -1, 1, 1)),
        k(random_activations(p.activations, rows * p.kv_heads() * p.key_dim, -1, 1, 2)),
        v(random_activations(p.activations, rows * p.kv_heads() * p.value_dim, -1, 1, 3)),
        slopes(random_floats(p.heads, 0, 3, 4)),
        log_decay(random_floats(rows * p.kv_heads(), -4, 0, 5)),
        decay(random_floats(rows * p.kv_heads() * p.key_dim, 0, 1, 6)) {}
};

template <typename Args>
void set_sizes(const Problem& p, int64_t rows, Args& args) {
  args.q_head_stride = args.k_head_stride = args.key_dim = p.key_dim;
  args.v_head_stride = args.value_dim = p.value_dim;
  args.q_stride = p.heads * p.key_dim;
  args.k_stride = p.kv_heads() * p.key_dim;
  args.v_stride = p.kv_heads() * p.value_dim;
  args.o_stride = p.heads * p.value_dim;
  args.group = p.group;
  args.decay_stride = p.kv_heads() * (p.decay == Decay::kChannel ? p.key_dim : 1);
  args.scale = 0.3f;
  args.rows = rows;
  args.num_heads = p.heads;
}

std::vector<float> reference(const Problem& p, const Inputs& in, const SlotRows& rows, StatePool& states) {
  ThreadPool pool(1);
  Workspace workspace;
  std::vector<float> o(static_cast<size_t>(rows.rows() * p.heads * p.value_dim), 77.0f);
  GatedLinearAttentionArgs args;
  set_sizes(p, rows.rows(), args);
  args.q = in.q.data();
  args.k = in.k.data();
  args.v = in.v.data();
  args.slopes = p.decay == Decay::kSlopes ? in.slopes.data() : nullptr;
  args.log_decay = p.decay == Decay::kToken ? in.log_decay.data() : nullptr;
  args.decay = p.decay == Decay::kChannel ? in.decay.data() : nullptr;
  args.o = o.data();
  args.state = states.slots(rows.src.data(), rows.dst.data(), rows.has_initial_state.data());
  gated_linear_attention_update().reference().function(args, pool, workspace);
  return o;
}

class GatedLinearAttentionCuda : public CudaTest {
 protected:
  // Returns y and the states.
  std::vector<float> expect_agrees(const Problem& p, const SlotRows& rows, bool zeros = false, int64_t stride = 0) {
    const Inputs in(p, rows.rows());
    StatePool states(rows.slots, p.heads * p.key_dim * p.value_dim, DType::kFloat32);
    fill_states(states, rows, zeros);
    DeviceStates held(p.state, p.heads * p.key_dim, p.value_dim, rows.slots, states);
    const std::vector<float> want = reference(p, in, rows, states);

    Uploads uploads(*device_);
    GatedLinearAttentionCudaArgs args;
    set_sizes(p, rows.rows(), args);
    args.activations = p.activations;
    args.q = uploads.add(p.activations, in.q);
    args.k = uploads.add(p.activations, in.k);
    args.v = uploads.add(p.activations, in.v);
    args.slopes = p.decay == Decay::kSlopes ? uploads.add(in.slopes) : nullptr;
    args.log_decay = p.decay == Decay::kToken ? uploads.add(in.log_decay) : nullptr;
    args.decay = p.decay == Decay::kChannel ? uploads.add(in.decay) : nullptr;
    std::vector<float> y = launch(kGatedLinearAttentionUpdateCuda, args, &GatedLinearAttentionCudaArgs::o, want.size(),
                                  held, rows, stride);
    const Tolerance tolerance = with_device_state_rounding(kGatedLinearAttentionCudaTolerance, p.state);
    const std::vector<float> left = held.all();
    expect_close(left, states.all(), tolerance, "states");
    expect_close(y, want, with_activation_rounding(tolerance, p.activations), "o");
    y.insert(y.end(), left.begin(), left.end());
    return y;
  }
};

TEST_F(GatedLinearAttentionCuda, AgreesWithTheReferenceOnEveryKindOfRow) {
  for (DType activations : {DType::kFloat32, DType::kBFloat16}) {
    for (DType state : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      for (Problem p : {Problem{4, 1, 128, 128}, Problem{4, 2, 64, 96, Decay::kToken},
                        Problem{3, 1, 32, 64, Decay::kChannel}, Problem{6, 3, 16, 20, Decay::kChannel},
                        Problem{2, 1, 256, 256, Decay::kToken}, Problem{2, 2, 33, 7}, Problem{1, 1, 1000, 48}}) {
        p.activations = activations;
        p.state = state;
        SCOPED_TRACE(testing::Message() << p.heads << " heads, " << p.key_dim << " x " << p.value_dim << ", "
                                        << dtype_name(activations) << ", " << dtype_name(state));
        expect_agrees(p, SlotRows::decode());
      }
    }
  }
}

TEST_F(GatedLinearAttentionCuda, ManyRowsInShuffledSlots) {
  expect_agrees({8, 1, 128, 128, Decay::kSlopes, DType::kBFloat16, DType::kFloat32}, many_rows());
}

TEST_F(GatedLinearAttentionCuda, NoStateIsAStateOfZerosBitForBit) {
  const Problem p = {4, 2, 64, 96, Decay::kToken};
  expect_same_bits(expect_agrees(p, rows_without_states()), expect_agrees(p, rows_with_states(), true));
}

TEST_F(GatedLinearAttentionCuda, SlotsLieFurtherApartThan32BitsReach) {
  expect_agrees({4, 2, 64, 96, Decay::kToken}, far_rows(), false, kFarStride);
}

}  // namespace
}  // namespace coluber
