// SPDX-License-Identifier: Apache-2.0
#include "kernels/scan/selective_scan_cuda.h"

#include "kernels/cuda_test.h"
#include "kernels/scan/selective_scan.h"

namespace coluber {
namespace {

struct Problem {
  int64_t channels, state_size;
  bool gate = true;
  DType activations = DType::kFloat32, state = DType::kFloat32;
};

struct Inputs {
  std::vector<float> x, delta, bias, a, b, c, d, z;

  Inputs(const Problem& p, int64_t rows)
      : x(random_activations(p.activations, rows * p.channels, -1, 1, 1)),
        delta(random_activations(p.activations, rows * p.channels, -5, 2, 2)),
        bias(random_floats(p.channels, -1, 1, 3)),
        a(random_floats(p.channels * p.state_size, -6, -0.01f, 4)),
        b(random_activations(p.activations, rows * p.state_size, -1, 1, 5)),
        c(random_activations(p.activations, rows * p.state_size, -1, 1, 6)),
        d(random_floats(p.channels, -1, 1, 7)),
        z(random_activations(p.activations, rows * p.channels, -2, 2, 8)) {}
};

template <typename Args>
void set_sizes(const Problem& p, int64_t rows, Args& args) {
  args.x_stride = args.delta_stride = args.z_stride = args.y_stride = args.channels = p.channels;
  args.b_stride = args.c_stride = args.state_size = p.state_size;
  args.rows = rows;
}

std::vector<float> reference(const Problem& p, const Inputs& in, const SlotRows& rows, StatePool& states) {
  ThreadPool pool(1);
  std::vector<float> y(in.x.size(), 77.0f), a(in.a.size());
  for (int64_t channel = 0; channel < p.channels; ++channel)
    for (int64_t n = 0; n < p.state_size; ++n)
      a[static_cast<size_t>(channel_block16_index(channel, n, p.channels, p.state_size))] =
          in.a[static_cast<size_t>(channel * p.state_size + n)];
  SelectiveScanArgs args;
  set_sizes(p, rows.rows(), args);
  args.x = in.x.data();
  args.delta = in.delta.data();
  args.delta_bias = p.gate ? in.bias.data() : nullptr;
  args.a = a.data();
  args.b = in.b.data();
  args.c = in.c.data();
  args.d = p.gate ? in.d.data() : nullptr;
  args.z = p.gate ? in.z.data() : nullptr;
  args.y = y.data();
  args.state = states.slots(rows.src.data(), rows.dst.data(), rows.has_initial_state.data());
  selective_state_update().reference().function(args, pool);
  return y;
}

class SelectiveScanCuda : public CudaTest {
 protected:
  // Returns y and the states.
  std::vector<float> expect_agrees(const Problem& p, const SlotRows& rows, bool zeros = false, int64_t stride = 0) {
    const Inputs in(p, rows.rows());
    StatePool states(rows.slots, p.channels * p.state_size, DType::kFloat32);
    fill_states(states, rows, zeros);
    DeviceStates held(p.state, p.channels, p.state_size, rows.slots, states, [p](int64_t line, int64_t n) {
      return channel_block16_index(line, n, p.channels, p.state_size);
    });
    const std::vector<float> want = reference(p, in, rows, states);

    Uploads uploads(*device_);
    SelectiveScanCudaArgs args;
    set_sizes(p, rows.rows(), args);
    args.activations = p.activations;
    args.x = uploads.add(p.activations, in.x);
    args.delta = uploads.add(p.activations, in.delta);
    args.delta_bias = p.gate ? uploads.add(in.bias) : nullptr;
    args.a = uploads.add(in.a);
    args.b = uploads.add(p.activations, in.b);
    args.c = uploads.add(p.activations, in.c);
    args.d = p.gate ? uploads.add(in.d) : nullptr;
    args.z = p.gate ? uploads.add(p.activations, in.z) : nullptr;
    args.scale_offset_bytes = held.scale_offset;
    std::vector<float> y =
        launch(kSelectiveStateUpdateCuda, args, &SelectiveScanCudaArgs::y, want.size(), held, rows, stride);
    const Tolerance tolerance = with_device_state_rounding(kSelectiveScanCudaTolerance, p.state);
    const std::vector<float> left = held.all();
    expect_close(left, states.all(), tolerance, "states");
    expect_close(y, want, with_activation_rounding(tolerance, p.activations), "y");
    y.insert(y.end(), left.begin(), left.end());
    return y;
  }
};

TEST_F(SelectiveScanCuda, AgreesWithTheReferenceOnEveryKindOfRow) {
  for (DType activations : {DType::kFloat32, DType::kBFloat16}) {
    for (DType state : {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kInt16, DType::kInt8}) {
      for (Problem p : {Problem{512, 16}, Problem{100, 16, false}, Problem{33, 32}, Problem{64, 64}, Problem{40, 128},
                        Problem{20, 256}, Problem{50, 10}, Problem{7, 100, false}}) {
        p.activations = activations;
        p.state = state;
        SCOPED_TRACE(testing::Message() << p.channels << " channels, state " << p.state_size << ", "
                                        << dtype_name(activations) << ", " << dtype_name(state));
        expect_agrees(p, SlotRows::decode());
      }
    }
  }
}

TEST_F(SelectiveScanCuda, ManyRowsInShuffledSlots) {
  expect_agrees({300, 16, true, DType::kBFloat16, DType::kFloat32}, many_rows());
}

TEST_F(SelectiveScanCuda, NoStateIsAStateOfZerosBitForBit) {
  const Problem p = {100, 16};
  expect_same_bits(expect_agrees(p, rows_without_states()), expect_agrees(p, rows_with_states(), true));
}

TEST_F(SelectiveScanCuda, SlotsLieFurtherApartThan32BitsReach) {
  expect_agrees({100, 16}, far_rows(), false, kFarStride);
}

}  // namespace
}  // namespace coluber
