// SPDX-License-Identifier: Apache-2.0
#include "kernels/scan/ssd_cuda.h"

#include "kernels/cuda_test.h"
#include "kernels/scan/ssd.h"

namespace coluber {
namespace {

struct Problem {
  int64_t heads, head_dim, groups, state_size;
  DType activations = DType::kFloat32, state = DType::kFloat32;
  bool skip = true;
};

struct Inputs {
  std::vector<float> x, dt, b, c, bias, a, d;

  Inputs(const Problem& p, int64_t rows)
      : x(random_activations(p.activations, rows * p.heads * p.head_dim, -1, 1, 1)),
        dt(random_activations(p.activations, rows * p.heads, -5, 3, 2)),
        b(random_activations(p.activations, rows * p.groups * p.state_size, -1, 1, 3)),
        c(random_activations(p.activations, rows * p.groups * p.state_size, -1, 1, 4)),
        bias(random_floats(p.heads, -1, 1, 5)),
        a(random_floats(p.heads, -4, -0.01f, 6)),
        d(random_floats(p.heads, -1, 1, 7)) {}
};

// Sizes and strides, which both sides have under the same names.
template <typename Args>
void set_sizes(const Problem& p, int64_t rows, Args& args) {
  args.x_stride = args.y_stride = p.heads * p.head_dim;
  args.dt_stride = args.num_heads = p.heads;
  args.b_stride = args.c_stride = p.groups * p.state_size;
  args.rows = rows;
  args.head_dim = p.head_dim;
  args.num_groups = p.groups;
  args.state_size = p.state_size;
}

std::vector<float> reference(const Problem& p, const Inputs& in, const SlotRows& rows, StatePool& states) {
  ThreadPool pool(1);
  Workspace workspace;
  std::vector<float> y(in.x.size(), 77.0f);
  SsdArgs args;
  set_sizes(p, rows.rows(), args);
  args.x = in.x.data();
  args.dt = in.dt.data();
  args.b = in.b.data();
  args.c = in.c.data();
  args.dt_bias = p.skip ? in.bias.data() : nullptr;
  args.a = in.a.data();
  args.d = p.skip ? in.d.data() : nullptr;
  args.y = y.data();
  args.state = states.slots(rows.src.data(), rows.dst.data(), rows.has_initial_state.data());
  ssd_state_update().reference().function(args, pool, workspace);
  return y;
}

class SsdCuda : public CudaTest {
 protected:
  // Returns y and the states.
  std::vector<float> expect_agrees(const Problem& p, const SlotRows& rows, bool zeros = false, int64_t stride = 0) {
    const Inputs in(p, rows.rows());
    StatePool states(rows.slots, p.heads * p.head_dim * p.state_size, DType::kFloat32);
    fill_states(states, rows, zeros);
    DeviceStates held(p.state, p.heads * p.head_dim, p.state_size, rows.slots, states);
    const std::vector<float> want = reference(p, in, rows, states);

    Uploads uploads(*device_);
    SsdCudaArgs args;
    set_sizes(p, rows.rows(), args);
    args.activations = p.activations;
    args.x = uploads.add(p.activations, in.x);
    args.dt = uploads.add(p.activations, in.dt);
    args.b = uploads.add(p.activations, in.b);
    args.c = uploads.add(p.activations, in.c);
    args.dt_bias = p.skip ? uploads.add(in.bias) : nullptr;
    args.a = uploads.add(in.a);
    args.d = p.skip ? uploads.add(in.d) : nullptr;
    args.scale_offset_bytes = held.scale_offset;
    std::vector<float> y = launch(kSsdStateUpdateCuda, args, &SsdCudaArgs::y, want.size(), held, rows, stride);
    const Tolerance tolerance = with_device_state_rounding(kSsdCudaTolerance, p.state);
    const std::vector<float> left = held.all();
    expect_close(left, states.all(), tolerance, "states");
    expect_close(y, want, with_activation_rounding(tolerance, p.activations), "y");
    y.insert(y.end(), left.begin(), left.end());
    return y;
  }
};

TEST_F(SsdCuda, AgreesWithTheReferenceOnEveryKindOfRow) {
  for (DType activations : {DType::kFloat32, DType::kBFloat16}) {
    for (DType state : {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kInt16, DType::kInt8}) {
      for (Problem p : {Problem{8, 64, 2, 128}, Problem{3, 20, 3, 16}, Problem{4, 33, 1, 32}, Problem{6, 40, 2, 64},
                        Problem{4, 64, 1, 256}, Problem{5, 7, 1, 33}, Problem{2, 16, 2, 10}, Problem{2, 16, 1, 1000}}) {
        p.activations = activations;
        p.state = state;
        p.skip = p.heads % 2 == 0;
        SCOPED_TRACE(testing::Message() << p.heads << " heads of " << p.head_dim << ", state " << p.state_size << ", "
                                        << dtype_name(activations) << ", " << dtype_name(state));
        expect_agrees(p, SlotRows::decode());
      }
    }
  }
}

TEST_F(SsdCuda, ManyRowsInShuffledSlots) {
  expect_agrees({16, 64, 4, 128, DType::kBFloat16, DType::kFloat32}, many_rows());
}

TEST_F(SsdCuda, NoStateIsAStateOfZerosBitForBit) {
  const Problem p = {8, 64, 2, 128};
  expect_same_bits(expect_agrees(p, rows_without_states()), expect_agrees(p, rows_with_states(), true));
}

TEST_F(SsdCuda, SlotsLieFurtherApartThan32BitsReach) { expect_agrees({8, 64, 2, 128}, far_rows(), false, kFarStride); }

}  // namespace
}  // namespace coluber
