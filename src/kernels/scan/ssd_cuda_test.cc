// SPDX-License-Identifier: Apache-2.0
#include "kernels/scan/ssd_cuda.h"

#include <numeric>

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

// Token by token or as a prompt, in float32: what a sequence's bits are does not depend on how it was cut.
class SsdOperationsCuda : public CudaTest {
 protected:
  // Tokens `first`, `first` + `every`, and so on of the inputs.
  static std::vector<float> taken(const std::vector<float>& values, int64_t width, int64_t first, int64_t every) {
    std::vector<float> some;
    for (int64_t t = first; t * width < static_cast<int64_t>(values.size()); t += every)
      some.insert(some.end(), values.begin() + t * width, values.begin() + (t + 1) * width);
    return some;
  }
  std::vector<float> run_on(const Problem& p, const Inputs& in, const SlotRows& rows, int64_t first, int64_t every,
                            StatesOnDevice& states, const Operation<SsdFunction>& operation) {
    Uploads uploads(*device_);
    SsdArgs args;
    set_sizes(p, rows.rows(), args);
    const auto upload = [&](const std::vector<float>& values, int64_t width) {
      return uploads.add(taken(values, width, first, every));
    };
    args.x = upload(in.x, args.x_stride);
    args.dt = upload(in.dt, args.dt_stride);
    args.b = upload(in.b, args.b_stride);
    args.c = upload(in.c, args.c_stride);
    args.dt_bias = p.skip ? uploads.add(in.bias) : nullptr;
    args.a = uploads.add(in.a);
    args.d = p.skip ? uploads.add(in.d) : nullptr;
    std::vector<float> y(taken(in.x, args.x_stride, first, every).size(), 77.0f);
    args.y = uploads.add(y);
    args.state = states.slots(uploads, rows);
    args.query_start_loc = uploads.add(rows.query_start_loc);
    args.tokens = rows.tokens();
    run(operation, args);
    uploads.fetch(args.y, y);
    return y;
  }
};

TEST_F(SsdOperationsCuda, StepsHaveTheBitsOfTheScan) {
  constexpr int64_t kTokens = 6;
  for (Problem p : {Problem{8, 64, 2, 128}, Problem{3, 20, 3, 16}, Problem{4, 33, 1, 32}, Problem{6, 40, 2, 64},
                    Problem{4, 64, 1, 256}, Problem{5, 7, 1, 33}, Problem{2, 16, 2, 100}, Problem{2, 16, 1, 1000}}) {
    p.skip = p.heads % 2 == 0;
    SCOPED_TRACE(testing::Message() << p.heads << " heads of " << p.head_dim << ", state " << p.state_size);
    SlotRows rows;
    rows.add(kTokens, true, false);
    rows.add(kTokens, false, false);
    rows.add_null(kTokens, 0);
    rows.add(kTokens, true, false);
    const Inputs in(p, rows.tokens());
    StatePool pool(rows.slots, p.heads * p.head_dim * p.state_size, DType::kFloat32);
    fill_states(pool, rows, false);
    const DeviceStates held(DType::kFloat32, p.heads * p.head_dim, p.state_size, rows.slots, pool);
    StatesOnDevice scanned(*device_, held, 0), stepped(*device_, held, 0);
    scanned.put();
    stepped.put();
    const std::vector<float> want = run_on(p, in, rows, 0, 1, scanned, ssd_chunk_scan());
    std::iota(rows.query_start_loc.begin(), rows.query_start_loc.end(), 0);
    for (int64_t t = 0; t < kTokens; ++t) {
      expect_same_bits(run_on(p, in, rows, t, kTokens, stepped, ssd_state_update()),
                       taken(want, p.heads * p.head_dim, t, kTokens));
      std::fill(rows.has_initial_state.begin(), rows.has_initial_state.end(), uint8_t{1});
    }
    EXPECT_TRUE(scanned.get() == stepped.get()) << "states";
  }
}

}  // namespace
}  // namespace coluber
