// SPDX-License-Identifier: Apache-2.0
#include "kernels/wkv/wkv7_cuda.h"

#include "kernels/cuda_test.h"
#include "kernels/wkv/wkv7.h"

namespace coluber {
namespace {

struct Problem {
  int64_t heads, head_dim;
  DType activations = DType::kFloat32, state = DType::kFloat32;
};

struct Inputs {
  std::vector<float> r, w, k, v, a, b;

  Inputs(const Problem& p, int64_t rows) {
    const int64_t count = rows * p.heads * p.head_dim;
    const auto bound = static_cast<float>(1 / std::sqrt(static_cast<double>(p.head_dim)));
    r = random_activations(p.activations, count, -1, 1, 1);
    w = random_floats(count, 0, 1, 2);
    k = random_activations(p.activations, count, -1, 1, 3);
    v = random_activations(p.activations, count, -1, 1, 4);
    a = random_activations(p.activations, count, -bound, bound, 5);
    b = random_activations(p.activations, count, -bound, bound, 6);
  }
};

// Where channel blocks have element (value, key) of a head.
int64_t place_of(int64_t head_dim, int64_t line, int64_t key) {
  const int64_t head = line / head_dim, value = line % head_dim, first = value / 16 * 16;
  const int64_t width = std::min<int64_t>(16, head_dim - first);
  return head * head_dim * head_dim + first * head_dim + key * width + (value - first);
}

std::vector<float> reference(const Problem& p, const Inputs& in, const SlotRows& rows, StatePool& states) {
  ThreadPool pool(1);
  Workspace workspace;
  std::vector<float> y(in.v.size(), 77.0f);
  Wkv7Args args;
  args.r = in.r.data();
  args.w = in.w.data();
  args.k = in.k.data();
  args.v = in.v.data();
  args.a = in.a.data();
  args.b = in.b.data();
  args.y = y.data();
  args.state = states.slots(rows.src.data(), rows.dst.data(), rows.has_initial_state.data());
  args.rows = rows.rows();
  args.num_heads = p.heads;
  args.head_dim = p.head_dim;
  wkv7().reference().function(args, pool, workspace);
  return y;
}

class Wkv7Cuda : public CudaTest {
 protected:
  // Returns y and the states.
  std::vector<float> expect_agrees(const Problem& p, const SlotRows& rows, bool zeros = false, int64_t stride = 0) {
    const Inputs in(p, rows.rows());
    StatePool states(rows.slots, p.heads * p.head_dim * p.head_dim, DType::kFloat32);
    fill_states(states, rows, zeros);
    DeviceStates held(p.state, p.heads * p.head_dim, p.head_dim, rows.slots, states,
                      [p](int64_t line, int64_t n) { return place_of(p.head_dim, line, n); });
    const std::vector<float> want = reference(p, in, rows, states);

    Uploads uploads(*device_);
    Wkv7CudaArgs args;
    args.activations = p.activations;
    args.r = uploads.add(p.activations, in.r);
    args.w = uploads.add(in.w);
    args.k = uploads.add(p.activations, in.k);
    args.v = uploads.add(p.activations, in.v);
    args.a = uploads.add(p.activations, in.a);
    args.b = uploads.add(p.activations, in.b);
    args.scale_offset_bytes = held.scale_offset;
    args.rows = rows.rows();
    args.num_heads = p.heads;
    args.head_dim = p.head_dim;
    std::vector<float> y = launch(kWkv7UpdateCuda, args, &Wkv7CudaArgs::y, want.size(), held, rows, stride);
    const Tolerance tolerance = with_device_state_rounding(kWkv7CudaTolerance, p.state);
    const std::vector<float> left = held.all();
    expect_close(left, states.all(), tolerance, "states");
    expect_close(y, want, with_activation_rounding(tolerance, p.activations), "y");
    y.insert(y.end(), left.begin(), left.end());
    return y;
  }
};

TEST_F(Wkv7Cuda, AgreesWithTheReferenceOnEveryKindOfRow) {
  for (DType activations : {DType::kFloat32, DType::kBFloat16}) {
    for (DType state : {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kInt16, DType::kInt8}) {
      for (Problem p : {Problem{4, 64}, Problem{3, 16}, Problem{2, 32}, Problem{2, 128}, Problem{1, 256},
                        Problem{3, 20}, Problem{1, 100}}) {
        p.activations = activations;
        p.state = state;
        SCOPED_TRACE(testing::Message() << p.heads << " heads of " << p.head_dim << ", " << dtype_name(activations)
                                        << ", " << dtype_name(state));
        expect_agrees(p, SlotRows::decode());
      }
    }
  }
}

TEST_F(Wkv7Cuda, ManyRowsInShuffledSlots) { expect_agrees({16, 64, DType::kBFloat16, DType::kFloat32}, many_rows()); }

TEST_F(Wkv7Cuda, NoStateIsAStateOfZerosBitForBit) {
  const Problem p = {4, 64};
  expect_same_bits(expect_agrees(p, rows_without_states()), expect_agrees(p, rows_with_states(), true));
}

TEST_F(Wkv7Cuda, SlotsLieFurtherApartThan32BitsReach) { expect_agrees({4, 64}, far_rows(), false, kFarStride); }

}  // namespace
}  // namespace coluber
