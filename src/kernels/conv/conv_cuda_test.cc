// SPDX-License-Identifier: Apache-2.0
#include "kernels/conv/causal_conv1d_cuda.h"
#include "kernels/conv/causal_conv1d_ref.h"
#include "kernels/conv/short_conv_cuda.h"
#include "kernels/conv/short_conv_ref.h"
#include "kernels/cuda_test.h"

namespace coluber {
namespace {

struct Problem {
  int64_t channels, width;
  bool bias = true;
  DType activations = DType::kFloat32, state = DType::kFloat32;
};

// Lengths at every edge of a tile of 32 tokens and of the window.
SlotRows ragged_rows(int64_t width) {
  SlotRows rows;
  int i = 0;
  for (int64_t length : {int64_t{0}, int64_t{1}, int64_t{2}, width - 1, int64_t{31}, int64_t{32}, int64_t{33},
                         int64_t{65}, width, int64_t{0}, int64_t{1500}, int64_t{3}, int64_t{1}}) {
    if (++i % 5 == 0) rows.add_null(length, i % 2 == 0 ? 0 : -1);
    rows.add(length, i % 3 != 0, i % 2 == 0);
  }
  return rows;
}

template <typename Args>
void set_sizes(const Problem& p, const SlotRows& rows, Args& args) {
  args.y_stride = args.channels = p.channels;
  args.width = p.width;
  args.rows = rows.rows();
}

// What differs between the two: their inputs.
struct Causal {
  static constexpr const char* kPrefill = kCausalConv1dCuda;
  static constexpr const char* kUpdate = kCausalConv1dUpdateCuda;
  static constexpr Tolerance kTolerance = kCausalConv1dCudaTolerance;
  using HostArgs = CausalConv1dArgs;
  using CudaArgs = CausalConv1dCudaArgs;
  static void run_reference(const HostArgs& args, bool is_update, ThreadPool& pool) {
    (is_update ? ref::causal_conv1d_update : ref::causal_conv1d)(args, pool);
  }
  template <typename Args, typename Put>
  static void set_inputs(const Problem& p, int64_t tokens, Args& args, Put&& put) {
    args.x = put(random_activations(p.activations, tokens * p.channels, -2, 2, 1));
    args.x_stride = p.channels;
    args.silu = p.channels % 3 != 0;
  }
};

struct Gated {
  static constexpr const char* kPrefill = kShortConvCuda;
  static constexpr const char* kUpdate = kShortConvUpdateCuda;
  static constexpr Tolerance kTolerance = kShortConvCudaTolerance;
  using HostArgs = ShortConvArgs;
  using CudaArgs = ShortConvCudaArgs;
  static void run_reference(const HostArgs& args, bool is_update, ThreadPool& pool) {
    (is_update ? ref::short_conv_update : ref::short_conv)(args, pool);
  }
  template <typename Args, typename Put>
  static void set_inputs(const Problem& p, int64_t tokens, Args& args, Put&& put) {
    args.b = put(random_activations(p.activations, tokens * p.channels, -2, 2, 1));
    args.c_gate = put(random_activations(p.activations, tokens * p.channels, -2, 2, 2));
    args.x = put(random_activations(p.activations, tokens * p.channels, -2, 2, 3));
    args.in_stride = p.channels;
  }
};

template <typename Kind>
class ConvCuda : public CudaTest {
 protected:
  std::vector<float> reference(const Problem& p, const SlotRows& rows, bool is_update, StatePool& states) {
    ThreadPool pool(1);
    std::vector<std::vector<float>> kept;
    const auto keep = [&](std::vector<float> values) { return kept.emplace_back(std::move(values)).data(); };
    kept.reserve(8);
    typename Kind::HostArgs args;
    set_sizes(p, rows, args);
    Kind::set_inputs(p, rows.tokens(), args, keep);
    args.weight = keep(random_floats(p.width * p.channels, -1, 1, 5));
    args.bias = p.bias ? keep(random_floats(p.channels, -1, 1, 6)) : nullptr;
    args.state = states.slots(rows.src.data(), rows.dst.data(), rows.has_initial_state.data());
    args.query_start_loc = rows.query_start_loc.data();
    std::vector<float> y(static_cast<size_t>(rows.tokens() * p.channels), 77.0f);
    args.y = y.data();
    Kind::run_reference(args, is_update, pool);
    return y;
  }

  // Returns y and the states.
  std::vector<float> expect_agrees(const Problem& p, const SlotRows& rows, bool is_update, bool zeros = false,
                                   int64_t stride = 0) {
    StatePool states(rows.slots, (p.width - 1) * p.channels, DType::kFloat32);
    fill_states(states, rows, zeros);
    DeviceStates held(p.state, p.width - 1, p.channels, rows.slots, states);
    const std::vector<float> want = reference(p, rows, is_update, states);

    Uploads uploads(*device_);
    typename Kind::CudaArgs args;
    set_sizes(p, rows, args);
    args.activations = p.activations;
    Kind::set_inputs(p, rows.tokens(), args,
                     [&](const std::vector<float>& values) { return uploads.add(p.activations, values); });
    args.weight = uploads.add(random_floats(p.width * p.channels, -1, 1, 5));
    args.bias = p.bias ? uploads.add(random_floats(p.channels, -1, 1, 6)) : nullptr;
    args.query_start_loc = uploads.add(rows.query_start_loc);
    args.tokens = rows.tokens();
    std::vector<float> y =
        launch(is_update ? Kind::kUpdate : Kind::kPrefill, args, &Kind::CudaArgs::y, want.size(), held, rows, stride);
    const Tolerance tolerance = with_device_state_rounding(Kind::kTolerance, p.state);
    const std::vector<float> left = held.all();
    expect_close(left, states.all(), tolerance, "states");
    expect_close(y, want, with_activation_rounding(tolerance, p.activations), "y");
    y.insert(y.end(), left.begin(), left.end());
    return y;
  }

  void expect_agrees_on_all(bool is_update) {
    for (DType activations : {DType::kFloat32, DType::kBFloat16}) {
      for (DType state : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
        for (Problem p : {Problem{1160, 4}, Problem{64, 3, false}, Problem{33, 4}, Problem{21, 2, false},
                          Problem{40, 7}, Problem{5, 16}}) {
          p.activations = activations;
          p.state = state;
          SCOPED_TRACE(testing::Message() << p.channels << " channels, width " << p.width << ", "
                                          << dtype_name(activations) << ", " << dtype_name(state));
          expect_agrees(p, is_update ? SlotRows::decode() : ragged_rows(p.width), is_update);
        }
      }
    }
  }
};

using Kinds = testing::Types<Causal, Gated>;
TYPED_TEST_SUITE(ConvCuda, Kinds);

TYPED_TEST(ConvCuda, UpdateAgreesWithTheReferenceOnEveryKindOfRow) { this->expect_agrees_on_all(true); }
TYPED_TEST(ConvCuda, PrefillAgreesWithTheReferenceOnEveryLength) { this->expect_agrees_on_all(false); }

// Where a tile of 32 tokens begins or ends, before all tokens, behind the last, and with none at all.
TYPED_TEST(ConvCuda, RowsWithoutTokensKeepTheirStateWhereverTheyStand) {
  for (const std::vector<int64_t>& lengths : std::vector<std::vector<int64_t>>{
           {0}, {0, 0, 0}, {0, 32, 0, 0}, {32, 0, 32, 0}, {31, 0, 1, 0, 64, 0}, {5, 0, 28, 0, 0, 40}}) {
    SlotRows rows;
    for (size_t i = 0; i < lengths.size(); ++i) {
      rows.add(lengths[i], i % 3 != 1, i % 2 == 0);
      rows.add_null(lengths[i] / 8, 0);
    }
    SCOPED_TRACE(testing::PrintToString(lengths));
    for (const Problem& p : {Problem{64, 4, true, DType::kBFloat16}, Problem{33, 5}})
      this->expect_agrees(p, rows, false);
  }
}

TYPED_TEST(ConvCuda, NoStateIsAStateOfZerosBitForBit) {
  for (bool is_update : {true, false})
    expect_same_bits(this->expect_agrees({64, 4}, rows_without_states(), is_update),
                     this->expect_agrees({64, 4}, rows_with_states(), is_update, true));
}

TYPED_TEST(ConvCuda, SlotsLieFurtherApartThan32BitsReach) {
  for (bool is_update : {true, false}) this->expect_agrees({64, 4}, far_rows(), is_update, false, kFarStride);
}

// Rows of one token are the update's, bit for bit.
TYPED_TEST(ConvCuda, PrefillOfOneTokenIsTheUpdate) {
  for (Problem p : {Problem{64, 4, true, DType::kBFloat16, DType::kBFloat16}, Problem{33, 5}})
    expect_same_bits(this->expect_agrees(p, many_rows(), true), this->expect_agrees(p, many_rows(), false));
}

}  // namespace
}  // namespace coluber
