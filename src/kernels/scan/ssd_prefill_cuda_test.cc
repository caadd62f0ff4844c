// SPDX-License-Identifier: Apache-2.0
#include "kernels/scan/ssd_prefill_cuda.h"

#include "kernels/prefill_cuda_test.h"
#include "kernels/scan/ssd.h"
#include "tensor/cuda_step.h"

namespace coluber {
namespace {

constexpr int64_t kChunk = 64;

struct Problem {
  int64_t heads, head_dim, groups, state_size;
  DType state = DType::kFloat32;
  bool skip = true;
  std::vector<float> a = {};  // [heads], empty: random
  float least_dt = -5, most_dt = 3;
  DType activations = DType::kBFloat16;  // that the inputs are exact in
};

struct Inputs {
  Problem p;
  std::vector<float> x, dt, b, c, bias, a, d;

  Inputs(const Problem& p, int64_t tokens)
      : p(p),
        x(random_activations(p.activations, tokens * p.heads * p.head_dim, -1, 1, 1)),
        dt(random_activations(p.activations, tokens * p.heads, p.least_dt, p.most_dt, 2)),
        b(random_activations(p.activations, tokens * p.groups * p.state_size, -1, 1, 3)),
        c(random_activations(p.activations, tokens * p.groups * p.state_size, -1, 1, 4)),
        bias(random_floats(p.heads, -1, 1, 5)),
        a(p.a.empty() ? random_floats(p.heads, -4, -0.01f, 6) : p.a),
        d(random_floats(p.heads, -1, 1, 7)) {}

  int64_t width() const { return p.heads * p.head_dim; }
  int64_t state_elements() const { return width() * p.state_size; }

  // What both sides have under the same names.
  template <typename Args>
  void set_sizes(int64_t rows, Args& args) const {
    args.x_stride = args.y_stride = width();
    args.dt_stride = args.num_heads = p.heads;
    args.b_stride = args.c_stride = p.groups * p.state_size;
    args.dt_max = 30;
    args.rows = rows;
    args.head_dim = p.head_dim;
    args.num_groups = p.groups;
    args.state_size = p.state_size;
  }
  std::vector<float> reference(const SlotRows& rows, StatePool& states, const StateExports& exports) const {
    ThreadPool pool(1);
    Workspace workspace;
    std::vector<float> y(x.size(), 77.0f);
    SsdArgs args;
    set_sizes(rows.rows(), args);
    args.x = x.data();
    args.dt = dt.data();
    args.b = b.data();
    args.c = c.data();
    args.dt_bias = p.skip ? bias.data() : nullptr;
    args.a = a.data();
    args.d = p.skip ? d.data() : nullptr;
    args.y = y.data();
    args.state = states.slots(rows.src.data(), rows.dst.data(), rows.has_initial_state.data());
    args.query_start_loc = rows.query_start_loc.data();
    args.exports = exports;
    ssd_chunk_scan().reference().function(args, pool, workspace);
    return y;
  }
};

class SsdPrefillCuda : public CudaTest {
 protected:
  std::vector<float> run(const Inputs& in, const SlotRows& rows, int64_t first_token, DeviceStates& held,
                         const LeftStates* left = nullptr, int64_t stride = 0) {
    Uploads uploads(*device_);
    const auto from = [&](const std::vector<float>& values, int64_t width) {
      return uploads.add(DType::kBFloat16, {values.begin() + first_token * width, values.end()});
    };
    SsdPrefillCudaArgs args;
    in.set_sizes(rows.rows(), args);
    args.x = from(in.x, in.width());
    args.dt = from(in.dt, in.p.heads);
    args.b = from(in.b, args.b_stride);
    args.c = from(in.c, args.c_stride);
    args.dt_bias = in.p.skip ? uploads.add(in.bias) : nullptr;
    args.a = uploads.add(in.a);
    args.d = in.p.skip ? uploads.add(in.d) : nullptr;
    args.query_start_loc = uploads.add(rows.query_start_loc);
    if (left != nullptr) args.exports = left->on_device(uploads);
    return launch(kSsdPrefillCuda, args, &SsdPrefillCudaArgs::y, static_cast<size_t>(rows.tokens() * in.width()), held,
                  rows, stride);
  }
  // The chunk scan of ssd.h on the device, from float32 activations that it may round; rows of y are padded.
  std::vector<float> scan(const Inputs& in, const SlotRows& rows, const LeftStates& left, DeviceStates& held,
                          bool allow_bf16, bool by_token = false) {
    Uploads uploads(*device_);
    StatesOnDevice states(*device_, held, 0);
    states.put();
    SsdArgs args;
    in.set_sizes(rows.rows(), args);
    args.x = uploads.add(in.x);
    args.dt = uploads.add(in.dt);
    args.b = uploads.add(in.b);
    args.c = uploads.add(in.c);
    args.dt_bias = in.p.skip ? uploads.add(in.bias) : nullptr;
    args.a = uploads.add(in.a);
    args.d = in.p.skip ? uploads.add(in.d) : nullptr;
    args.y_stride = in.width() + 3;
    std::vector<float> padded(static_cast<size_t>(rows.tokens() * args.y_stride), 77.0f);
    args.y = uploads.add(padded);
    args.state = states.slots(uploads, rows);
    args.state.by_token = by_token;
    args.exports = left.on_device(uploads);
    args.query_start_loc = uploads.add(rows.query_start_loc);
    args.tokens = rows.tokens();
    args.allow_bf16 = allow_bf16;
    ThreadPool pool(1);
    Workspace workspace(*device_);
    CudaStep step(*device_);
    step.begin();
    ssd_chunk_scan()(args, Execution{&pool, &workspace, &step});
    device_->synchronize();
    held.bytes = states.get();
    uploads.fetch(args.y, padded);
    std::vector<float> y;
    for (int64_t token = 0; token < rows.tokens(); ++token) {
      const auto first = padded.begin() + token * args.y_stride;
      y.insert(y.end(), first, first + in.width());
      EXPECT_EQ(first[in.width()], 77.0f) << "between the rows, behind token " << token;
    }
    return y;
  }
  // Returns y and the states.
  std::vector<float> expect_agrees(const Problem& p, SlotRows rows, bool zeros = false, int64_t stride = 0) {
    const LeftStates left(rows, kChunk);
    const Inputs in(p, rows.tokens());
    StatePool states(rows.slots, in.state_elements(), DType::kFloat32);
    fill_states(states, rows, zeros);
    DeviceStates held(p.state, p.heads * p.head_dim, p.state_size, rows.slots, states);
    const std::vector<float> want = in.reference(rows, states, left.host());
    std::vector<float> y = run(in, rows, 0, held, &left, stride);
    const std::vector<float> at_rest = held.all();
    expect_small_error(y, want, rows.query_start_loc, in.width(), with_stored_state(kSsdPrefillOutputError, p.state),
                       "y");
    expect_small_error(at_rest, states.all(), slot_starts(rows.slots), in.state_elements(),
                       with_stored_state(kSsdPrefillStateError, p.state), "states");
    y.insert(y.end(), at_rest.begin(), at_rest.end());
    return y;
  }
};

TEST_F(SsdPrefillCuda, AgreesWithTheReferenceOnEveryKindOfRow) {
  for (DType state : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (Problem p : {Problem{6, 64, 2, 128}, Problem{3, 40, 3, 64}, Problem{4, 136, 1, 32}, Problem{2, 8, 1, 104},
                      Problem{8, 16, 8, 16}}) {
      p.state = state;
      p.skip = p.heads % 2 == 0;
      SCOPED_TRACE(testing::Message() << p.heads << " heads of " << p.head_dim << ", state " << p.state_size << ", "
                                      << dtype_name(state));
      expect_agrees(p, prefill_rows(kChunk));
    }
  }
}

TEST_F(SsdPrefillCuda, TheOperationRoundsActivationsWhereItMayAndNowhereElse) {
  for (Problem p : {Problem{6, 64, 2, 128}, Problem{3, 40, 3, 64, DType::kBFloat16}, Problem{8, 16, 8, 16}}) {
    p.activations = DType::kFloat32;
    SCOPED_TRACE(testing::Message() << p.heads << " heads of " << p.head_dim << ", state " << p.state_size);
    SlotRows rows = prefill_rows(kChunk);
    const LeftStates left(rows, kChunk);
    const Inputs in(p, rows.tokens());
    StatePool states(rows.slots, in.state_elements(), DType::kFloat32);
    fill_states(states, rows, false);
    const DeviceStates before(p.state, in.width(), p.state_size, rows.slots, states);
    const std::vector<float> want = in.reference(rows, states, left.host());
    DeviceStates rounded = before, exact = before, by_token = before;
    const std::vector<float> y = scan(in, rows, left, rounded, true);
    expect_small_error(y, want, rows.query_start_loc, in.width(), with_stored_state(kSsdRoundedOutputError, p.state),
                       "y");
    expect_small_error(rounded.all(), states.all(), slot_starts(rows.slots), in.state_elements(),
                       with_stored_state(kSsdRoundedStateError, p.state), "states");
    const std::vector<float> float32 = scan(in, rows, left, exact, false);
    EXPECT_NE(y, float32) << "the tensor cores were not used";
    expect_same_bits(scan(in, rows, left, by_token, true, true), float32);
    EXPECT_TRUE(exact.bytes == by_token.bytes) << "states of steps in order and of no rounding";
  }
}

TEST_F(SsdPrefillCuda, DecaysNearZeroAndNearOne) {
  for (const Problem& p : {Problem{4, 64, 1, 128, DType::kFloat32, true, {-1000, -16, -1e-4f, -1e-7f}},
                           Problem{4, 64, 2, 64, DType::kFloat32, true, {-16, -1, -1e-3f, 0}, 5, 20},
                           Problem{4, 64, 2, 64, DType::kFloat32, true, {-16, -8, -2, -1}, -8, -5}})
    expect_agrees(p, prefill_rows(kChunk));
}

TEST_F(SsdPrefillCuda, ThousandsOfTokens) {
  SlotRows rows;
  rows.add(4097, true, false);
  rows.add(3000, false, true);
  expect_agrees({2, 64, 1, 128}, rows);
}

TEST_F(SsdPrefillCuda, PackedRowsAreRowsAloneBitForBit) {
  const SlotRows rows = prefill_rows(kChunk);
  const Inputs in({4, 64, 2, 128}, rows.tokens());
  StatePool states(rows.slots, in.state_elements(), DType::kFloat32);
  fill_states(states, rows, false);
  expect_packed_is_alone(
      rows, DeviceStates(DType::kFloat32, in.width(), 128, rows.slots, states),
      [&](const SlotRows& some, int64_t first_token, DeviceStates& held) { return run(in, some, first_token, held); });
}

TEST_F(SsdPrefillCuda, NoStateIsAStateOfZerosBitForBit) {
  SlotRows without, with;
  for (int64_t length : {1, 130, 300}) {
    without.add(length, false, false);
    with.add(length, true, false);
  }
  const Problem p = {4, 64, 2, 128};
  expect_same_bits(expect_agrees(p, without), expect_agrees(p, with, true));
}

TEST_F(SsdPrefillCuda, SlotsLieFurtherApartThan32BitsReach) {
  SlotRows rows;
  rows.add(70, true, true);
  rows.add(3, true, false);
  expect_agrees({4, 64, 2, 128}, rows, false, kFarStride);
}

TEST_F(SsdPrefillCuda, RefusesWhatItDoesNotCompute) {
  const auto prefill = device_->library().function<SsdPrefillCudaFunction>(kSsdPrefillCuda);
  SsdPrefillCudaArgs args;
  args.rows = args.num_heads = args.num_groups = 1;
  args.head_dim = 64;
  args.state_size = 136;
  EXPECT_STREQ(prefill(&args, device_->stream()), "keys of another size than a multiple of 8 up to 128");
  args.state_size = 128;
  args.head_dim = 20;
  EXPECT_STREQ(prefill(&args, device_->stream()), "values of another size than a multiple of 8");
  args.activations = DType::kFloat32;
  EXPECT_STREQ(prefill(&args, device_->stream()), "activations of another type than bfloat16");
}

}  // namespace
}  // namespace coluber
