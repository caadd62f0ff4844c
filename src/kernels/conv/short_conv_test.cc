// SPDX-License-Identifier: Apache-2.0
#include "kernels/conv/short_conv.h"

#include <gtest/gtest.h>

#include "kernels/op_test.h"
#include "kernels/state_slots_test.h"

namespace coluber {
namespace {

struct Problem {
  int64_t channels, width;
  bool bias;
  DType dtype;
};

struct Inputs {
  Problem problem;
  std::vector<float> bcx, weight, bias;

  Inputs(const Problem& p, int64_t tokens)
      : problem(p),
        bcx(random_floats(tokens * 3 * p.channels, -2, 2, 1)),
        weight(random_floats(p.channels * p.width, -1, 1, 2)),
        bias(random_floats(p.channels, -1, 1, 3)) {}

  ShortConvArgs args(const StateSlots& state, const int32_t* query_start_loc, int64_t rows,
                     std::vector<float>& y) const {
    ShortConvArgs a;
    a.b = bcx.data();
    a.c_gate = a.b + problem.channels;
    a.x = a.c_gate + problem.channels;
    a.in_stride = 3 * problem.channels;
    a.weight = weight.data();
    a.bias = problem.bias ? bias.data() : nullptr;
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

std::vector<OpOutput> run(const Problem& p, const SlotRows& rows, ShortConvFunction function, ThreadPool& pool) {
  const Inputs inputs(p, rows.tokens());
  StatePool states(rows.slots, (p.width - 1) * p.channels, p.dtype);
  for (int64_t slot : rows.filled) states.fill(slot, 10 + static_cast<uint64_t>(slot));
  std::vector<float> y(static_cast<size_t>(rows.tokens() * p.channels), 77.0f);
  function(inputs.args(states.slots(rows.src.data(), rows.dst.data(), rows.has_initial_state.data()),
                       rows.query_start_loc.data(), rows.rows(), y),
           pool);
  return {{"y", y}, {"state", states.all()}};
}

TEST(ShortConvKernel, CandidatesAgreeOnEveryKindOfRow) {
  ThreadPool pool(2);
  for (const Problem& p : {Problem{48, 3, true, DType::kFloat32}, Problem{160, 3, false, DType::kBFloat16},
                           Problem{300, 4, true, DType::kFloat16}, Problem{21, 2, true, DType::kFloat32},
                           Problem{7, 8, false, DType::kFloat32}, Problem{130, 16, true, DType::kFloat32}}) {
    SCOPED_TRACE(::testing::Message() << "channels " << p.channels << " width " << p.width);
    expect_candidates_agree(short_conv(), kShortConvTolerance,
                            [&](ShortConvFunction f) { return run(p, SlotRows::prefill(), f, pool); });
    expect_candidates_agree(short_conv_update(), kShortConvTolerance,
                            [&](ShortConvFunction f) { return run(p, SlotRows::decode(), f, pool); });
  }
}

TEST(ShortConvKernel, MainPathIsVectorised) {
  expect_vectorised(short_conv());
  expect_vectorised(short_conv_update());
}

TEST(ShortConvKernel, NullRowsGiveZerosAndTouchNoState) {
  ThreadPool pool(1);
  SlotRows rows;
  rows.add_null(3, 0);
  rows.add_null(2, -1);
  rows.slots = 2;
  const auto out = run({40, 3, true, DType::kFloat32}, rows, short_conv().selected().function, pool);
  for (float value : out[0].values) EXPECT_EQ(value, 0.0f);
  for (float value : out[1].values) EXPECT_TRUE(std::isnan(value));
}

TEST(ShortConvKernel, CutsOfAPromptDoNotShow) {
  ThreadPool pool(2);
  const Problem p{200, 3, true, DType::kFloat32};
  const int64_t tokens = 23;
  const Inputs inputs(p, tokens);
  const int32_t slot = 1;
  const auto feed = [&](int64_t piece, bool update) {
    StatePool states(2, 2 * p.channels, p.dtype);
    std::vector<float> y(static_cast<size_t>(tokens * p.channels));
    for (int64_t t = 0; t < tokens; t += piece) {
      const uint8_t initial = t > 0;
      const int32_t loc[2] = {0, static_cast<int32_t>(std::min(piece, tokens - t))};
      ShortConvArgs args = inputs.args(states.slots(&slot, &slot, &initial), loc, 1, y);
      args.b += t * args.in_stride;
      args.c_gate += t * args.in_stride;
      args.x += t * args.in_stride;
      args.y += t * args.y_stride;
      (update ? short_conv_update() : short_conv())(args, pool);
    }
    const std::vector<float> state = states.slot(1);
    y.insert(y.end(), state.begin(), state.end());
    return y;
  };
  const std::vector<float> whole = feed(tokens, false);
  for (int64_t piece : {1, 2, 5}) EXPECT_EQ(feed(piece, false), whole) << "pieces of " << piece;
  EXPECT_EQ(feed(1, true), whole);
}

}  // namespace
}  // namespace coluber
