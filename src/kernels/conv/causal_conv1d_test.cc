// SPDX-License-Identifier: Apache-2.0
#include "kernels/conv/causal_conv1d.h"

#include <gtest/gtest.h>

#include "kernels/op_test.h"
#include "kernels/state_slots_test.h"

namespace coluber {
namespace {

struct Problem {
  int64_t channels, width;
  bool silu, bias;
  DType dtype;
};

struct Inputs {
  Problem problem;
  int64_t x_stride;
  std::vector<float> x, weight, bias;

  Inputs(const Problem& p, int64_t tokens)
      : problem(p),
        x_stride(p.channels + 5),
        x(random_floats(tokens * x_stride, -2, 2, 1)),
        weight(random_floats(p.channels * p.width, -1, 1, 2)),
        bias(random_floats(p.channels, -1, 1, 3)) {}

  CausalConv1dArgs args(const StateSlots& state, const int32_t* query_start_loc, int64_t rows,
                        std::vector<float>& y) const {
    CausalConv1dArgs a;
    a.x = x.data();
    a.x_stride = x_stride;
    a.weight = weight.data();
    a.bias = problem.bias ? bias.data() : nullptr;
    a.silu = problem.silu;
    a.y = y.data();
    a.y_stride = problem.channels;
    a.state = state;
    a.query_start_loc = query_start_loc;
    a.rows = rows;
    a.channels = problem.channels;
    a.width = problem.width;
    return a;
  }
};

const Problem kProblems[] = {
    {48, 4, true, true, DType::kFloat32},   {160, 4, true, false, DType::kBFloat16},
    {300, 3, false, true, DType::kFloat16}, {21, 2, true, true, DType::kFloat32},
    {7, 8, false, false, DType::kFloat32},  {129, 5, true, true, DType::kBFloat16},
    {1, 16, true, false, DType::kFloat32},
};

std::vector<OpOutput> run(const Problem& p, const SlotRows& rows, CausalConv1dFunction function, ThreadPool& pool) {
  const Inputs inputs(p, rows.tokens());
  StatePool states(rows.slots, (p.width - 1) * p.channels, p.dtype);
  for (int64_t slot : rows.filled) states.fill(slot, 10 + static_cast<uint64_t>(slot));
  std::vector<float> y(static_cast<size_t>(rows.tokens() * p.channels), 77.0f);
  function(inputs.args(states.slots(rows.src.data(), rows.dst.data(), rows.has_initial_state.data()),
                       rows.query_start_loc.data(), rows.rows(), y),
           pool);
  return {{"y", y}, {"state", states.all()}};
}

TEST(CausalConv1d, CandidatesAgreeOnEveryKindOfRow) {
  ThreadPool pool(2);
  for (const Problem& p : kProblems) {
    SCOPED_TRACE(::testing::Message() << "channels " << p.channels << " width " << p.width);
    expect_candidates_agree(causal_conv1d(), kCausalConv1dTolerance,
                            [&](CausalConv1dFunction f) { return run(p, SlotRows::prefill(), f, pool); });
    expect_candidates_agree(causal_conv1d_update(), kCausalConv1dTolerance,
                            [&](CausalConv1dFunction f) { return run(p, SlotRows::decode(), f, pool); });
  }
}

TEST(CausalConv1d, MainPathIsVectorised) {
  expect_vectorised(causal_conv1d());
  expect_vectorised(causal_conv1d_update());
}

TEST(CausalConv1d, NullRowsGiveZerosAndTouchNoState) {
  ThreadPool pool(1);
  const Problem p{40, 4, true, true, DType::kFloat32};
  SlotRows rows;
  rows.add_null(3, 0);
  rows.add_null(2, -1);
  rows.slots = 2;
  const auto out = run(p, rows, causal_conv1d().selected().function, pool);
  for (float value : out[0].values) EXPECT_EQ(value, 0.0f);
  for (float value : out[1].values) EXPECT_TRUE(std::isnan(value));
}

TEST(CausalConv1d, StateIsTheLastRawInputs) {
  ThreadPool pool(1);
  const Problem p{17, 4, true, true, DType::kFloat32};
  SlotRows rows;
  rows.add(2, true, false);  // shorter than the window
  rows.add(6, false, false);
  const Inputs inputs(p, rows.tokens());
  StatePool states(rows.slots, 3 * 17, p.dtype);
  states.fill(1, 5);
  const std::vector<float> before = states.slot(1);
  std::vector<float> y(8 * 17);
  causal_conv1d()(inputs.args(states.slots(rows.src.data(), rows.dst.data(), rows.has_initial_state.data()),
                              rows.query_start_loc.data(), 2, y),
                  pool);
  for (int64_t c = 0; c < 17; ++c) {
    EXPECT_EQ(states.get(1, c), before[static_cast<size_t>(34 + c)]);
    EXPECT_EQ(states.get(1, 17 + c), inputs.x[static_cast<size_t>(c)]);
    EXPECT_EQ(states.get(1, 34 + c), inputs.x[static_cast<size_t>(inputs.x_stride + c)]);
    for (int64_t s = 0; s < 3; ++s) {
      EXPECT_EQ(states.get(2, s * 17 + c), inputs.x[static_cast<size_t>((5 + s) * inputs.x_stride + c)]);
    }
  }
}

// One pass, pieces and single steps give the same bits.
TEST(CausalConv1d, CutsOfAPromptDoNotShow) {
  ThreadPool pool(2);
  const Problem p{200, 4, true, true, DType::kFloat32};
  const int64_t tokens = 23;
  const Inputs inputs(p, tokens);
  const int32_t slot = 1;
  const auto feed = [&](int64_t piece, bool update) {
    StatePool states(2, 3 * p.channels, p.dtype);
    std::vector<float> y(static_cast<size_t>(tokens * p.channels));
    for (int64_t t = 0; t < tokens; t += piece) {
      const uint8_t initial = t > 0;
      const int32_t loc[2] = {0, static_cast<int32_t>(std::min(piece, tokens - t))};
      CausalConv1dArgs args = inputs.args(states.slots(&slot, &slot, &initial), loc, 1, y);
      args.x += t * args.x_stride;
      args.y += t * args.y_stride;
      (update ? causal_conv1d_update() : causal_conv1d())(args, pool);
    }
    const std::vector<float> state = states.slot(1);
    y.insert(y.end(), state.begin(), state.end());
    return y;
  };
  const std::vector<float> whole = feed(tokens, false);
  for (int64_t piece : {1, 2, 3, 7}) EXPECT_EQ(feed(piece, false), whole) << "pieces of " << piece;
  EXPECT_EQ(feed(1, true), whole);
}

TEST(CausalConv1d, UpdateRunsInPlace) {
  ThreadPool pool(2);
  const Problem p{150, 4, true, true, DType::kFloat32};
  const SlotRows rows = SlotRows::decode();
  const auto apart = run(p, rows, causal_conv1d_update().selected().function, pool);
  Inputs inputs(p, rows.tokens());
  StatePool states(rows.slots, 3 * p.channels, p.dtype);
  for (int64_t slot : rows.filled) states.fill(slot, 10 + static_cast<uint64_t>(slot));
  std::vector<float> unused;
  CausalConv1dArgs args = inputs.args(states.slots(rows.src.data(), rows.dst.data(), rows.has_initial_state.data()),
                                      nullptr, rows.rows(), unused);
  args.y = inputs.x.data();
  args.y_stride = args.x_stride;
  causal_conv1d_update()(args, pool);
  expect_close(states.all(), apart[1].values, Tolerance{}, "state");
  std::vector<float> y;
  for (int64_t r = 0; r < rows.rows(); ++r) {
    y.insert(y.end(), args.y + r * args.y_stride, args.y + r * args.y_stride + p.channels);
  }
  EXPECT_EQ(y, apart[0].values);
}

}  // namespace
}  // namespace coluber
