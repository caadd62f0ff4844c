// SPDX-License-Identifier: Apache-2.0
#include "kernels/scan/selective_scan.h"

#include <gtest/gtest.h>

#include "kernels/op_test.h"
#include "kernels/state_slots_test.h"

namespace coluber {
namespace {

struct Problem {
  int64_t channels, state_size;
  bool gate, bias;
  DType dtype;
};

struct Inputs {
  Problem problem;
  std::vector<float> xz, delta, bias, a, bc, d;

  Inputs(const Problem& p, int64_t tokens)
      : problem(p),
        xz(random_floats(tokens * 2 * p.channels, -2, 2, 1)),
        delta(random_floats(tokens * p.channels, -6, 2, 2)),
        bias(random_floats(p.channels, -1, 1, 3)),
        a(static_cast<size_t>(p.channels * p.state_size)),
        bc(random_floats(tokens * 2 * p.state_size, -1, 1, 4)),
        d(random_floats(p.channels, -1, 1, 5)) {
    const std::vector<float> a_log = random_floats(p.channels * p.state_size, -3, 3, 6);
    prepare_selective_scan_a(a_log.data(), p.channels, p.state_size, a.data());
  }

  SelectiveScanArgs args(const StateSlots& state, const int32_t* query_start_loc, int64_t rows,
                         std::vector<float>& y) const {
    SelectiveScanArgs s;
    s.x = xz.data();
    s.x_stride = 2 * problem.channels;
    s.delta = delta.data();
    s.delta_stride = problem.channels;
    s.delta_bias = problem.bias ? bias.data() : nullptr;
    s.a = a.data();
    s.b = bc.data();
    s.c = bc.data() + problem.state_size;
    s.b_stride = s.c_stride = 2 * problem.state_size;
    s.d = problem.bias ? d.data() : nullptr;
    s.z = problem.gate ? xz.data() + problem.channels : nullptr;
    s.z_stride = 2 * problem.channels;
    s.y = y.data();
    s.y_stride = problem.channels;
    s.state = state;
    s.query_start_loc = query_start_loc;
    s.rows = rows;
    s.channels = problem.channels;
    s.state_size = problem.state_size;
    return s;
  }
};

std::vector<OpOutput> run(const Problem& p, const SlotRows& rows, SelectiveScanFunction function, ThreadPool& pool) {
  const Inputs inputs(p, rows.tokens());
  StatePool states(rows.slots, p.channels * p.state_size, p.dtype);
  for (int64_t slot : rows.filled) states.fill(slot, 10 + static_cast<uint64_t>(slot));
  std::vector<float> y(static_cast<size_t>(rows.tokens() * p.channels), 77.0f);
  function(inputs.args(states.slots(rows.src.data(), rows.dst.data(), rows.has_initial_state.data()),
                       rows.query_start_loc.data(), rows.rows(), y),
           pool);
  return {{"y", y}, {"state", states.all()}};
}

// One rounding of a 16-bit state may fall the other way.
Tolerance state_tolerance(DType dtype) {
  Tolerance tolerance = kSelectiveScanTolerance;
  if (dtype == DType::kBFloat16) tolerance.relative = 1.0 / 128;
  if (dtype == DType::kFloat16) tolerance.relative = 1.0 / 1024;
  return tolerance;
}

TEST(SelectiveScan, CandidatesAgreeOnEveryKindOfRow) {
  ThreadPool pool(2);
  for (const Problem& p :
       {Problem{96, 16, true, true, DType::kFloat32}, Problem{104, 12, true, true, DType::kFloat32},
        Problem{21, 16, false, false, DType::kFloat32}, Problem{5, 3, true, false, DType::kFloat32},
        Problem{130, 1, true, true, DType::kFloat32}, Problem{60, 16, true, true, DType::kBFloat16},
        Problem{77, 5, true, true, DType::kFloat16}, Problem{16, 256, true, true, DType::kFloat32}}) {
    SCOPED_TRACE(::testing::Message() << "channels " << p.channels << " state " << p.state_size);
    for (size_t output : {0, 1}) {
      const Tolerance tolerance = output == 0 ? kSelectiveScanTolerance : state_tolerance(p.dtype);
      expect_candidates_agree(selective_scan(), tolerance, [&](SelectiveScanFunction f) {
        return std::vector<OpOutput>{run(p, SlotRows::prefill(), f, pool)[output]};
      });
      expect_candidates_agree(selective_state_update(), tolerance, [&](SelectiveScanFunction f) {
        return std::vector<OpOutput>{run(p, SlotRows::decode(), f, pool)[output]};
      });
    }
  }
}

TEST(SelectiveScan, MainPathIsVectorised) {
  expect_vectorised(selective_scan());
  expect_vectorised(selective_state_update());
}

TEST(SelectiveScan, NullRowsGiveZerosAndTouchNoState) {
  ThreadPool pool(1);
  SlotRows rows;
  rows.add_null(3, 0);
  rows.add_null(2, -1);
  rows.slots = 2;
  const auto out = run({40, 16, true, true, DType::kFloat32}, rows, selective_scan().selected().function, pool);
  for (float value : out[0].values) EXPECT_EQ(value, 0.0f);
  for (float value : out[1].values) EXPECT_TRUE(std::isnan(value));
}

TEST(SelectiveScan, LaneOrderHoldsEveryElementOnce) {
  for (int64_t channels : {1, 15, 16, 40}) {
    std::vector<int> seen(static_cast<size_t>(channels * 3));
    for (int64_t c = 0; c < channels; ++c) {
      for (int64_t n = 0; n < 3; ++n) ++seen[static_cast<size_t>(channel_block16_index(c, n, channels, 3))];
    }
    for (int count : seen) EXPECT_EQ(count, 1);
  }
}

// One pass, pieces and single steps give the same bits: every token is computed alike.
TEST(SelectiveScan, CutsOfAPromptDoNotShow) {
  ThreadPool pool(2);
  const Problem p{72, 16, true, true, DType::kFloat32};
  const int64_t tokens = 40;
  const Inputs inputs(p, tokens);
  const int32_t slot = 1;
  const auto feed = [&](int64_t piece, bool update) {
    StatePool states(2, p.channels * p.state_size, p.dtype);
    std::vector<float> y(static_cast<size_t>(tokens * p.channels));
    for (int64_t t = 0; t < tokens; t += piece) {
      const uint8_t initial = t > 0;
      const int32_t loc[2] = {0, static_cast<int32_t>(std::min(piece, tokens - t))};
      SelectiveScanArgs args = inputs.args(states.slots(&slot, &slot, &initial), loc, 1, y);
      args.x += t * args.x_stride;
      args.z += t * args.z_stride;
      args.delta += t * args.delta_stride;
      args.b += t * args.b_stride;
      args.c += t * args.c_stride;
      args.y += t * args.y_stride;
      (update ? selective_state_update() : selective_scan())(args, pool);
    }
    const std::vector<float> state = states.slot(1);
    y.insert(y.end(), state.begin(), state.end());
    return y;
  };
  const std::vector<float> whole = feed(tokens, false);
  for (int64_t piece : {1, 3, 17}) EXPECT_EQ(feed(piece, false), whole) << "pieces of " << piece;
  EXPECT_EQ(feed(1, true), whole);
}

TEST(SelectiveScan, StatesInsideRowsAreThoseOfShorterRows) {
  ThreadPool pool(2);
  const Problem p{72, 16, true, true, DType::kFloat32};
  const Inputs inputs(p, 90);
  for (const auto function : {selective_scan().selected().function, selective_scan().reference().function}) {
    const auto run_rows = [&](const std::vector<int32_t>& loc, const StateExports& exports, std::vector<float>& y) {
      const std::vector<int32_t> slot = {1, 2};
      const std::vector<uint8_t> initial = {1, 0};
      StatePool states(7, p.channels * p.state_size, p.dtype);
      states.fill(1, 9);
      y.assign(static_cast<size_t>(90 * p.channels), 0.0f);
      SelectiveScanArgs args = inputs.args(states.slots(slot.data(), slot.data(), initial.data()), loc.data(), 2, y);
      args.exports = exports;
      function(args, pool);
      return states;
    };
    expect_exports_are_ends_of_shorter_rows(run_rows);
  }
}

// A decay close to 1 sums thousands of small terms of one sign: an error of the exponential would pile up.
TEST(SelectiveScan, LongMemoryDoesNotDrift) {
  ThreadPool pool(2);
  const Problem p{16, 2, false, false, DType::kFloat32};
  const int64_t tokens = 20000;
  Inputs inputs(p, tokens);
  for (float& x : inputs.xz) x = 1.0f;
  for (float& delta : inputs.delta) delta = -6.9f;  // dt = 1e-3
  for (float& value : inputs.bc) value = 1.0f;
  for (float& a : inputs.a) a = -1.4426950f;
  SlotRows rows;
  rows.add(tokens, false, false);
  std::vector<float> last[2];
  for (int i : {0, 1}) {
    StatePool states(2, p.channels * p.state_size, p.dtype);
    std::vector<float> y(static_cast<size_t>(tokens * p.channels));
    const auto function = i == 0 ? selective_scan().reference().function : selective_scan().selected().function;
    function(inputs.args(states.slots(rows.src.data(), rows.dst.data(), rows.has_initial_state.data()),
                         rows.query_start_loc.data(), 1, y),
             pool);
    last[i] = states.slot(1);
  }
  expect_close(last[1], last[0], Tolerance{0, 2e-4, 0}, "state after 20000 constant tokens");
}

}  // namespace
}  // namespace coluber
