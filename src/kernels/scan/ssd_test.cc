// SPDX-License-Identifier: Apache-2.0
#include "kernels/scan/ssd.h"

#include <gtest/gtest.h>

#include "kernels/op_test.h"
#include "kernels/state_slots_test.h"

namespace coluber {
namespace {

struct Problem {
  int64_t heads, head_dim, groups, state_size;
  DType dtype = DType::kFloat32;
  float dt_min = 0.0f, dt_max = std::numeric_limits<float>::infinity();
  int64_t chunk_size = 0;
  bool skip = true;
  bool by_token = false;
};

struct Inputs {
  Problem problem;
  int64_t width;  // of a token's x | B | C
  std::vector<float> xbc, dt, bias, a, d;

  Inputs(const Problem& p, int64_t tokens)
      : problem(p),
        width(p.heads * p.head_dim + 2 * p.groups * p.state_size),
        xbc(random_floats(tokens * width, -1, 1, 1)),
        dt(random_floats(tokens * p.heads, -5, 3, 2)),
        bias(random_floats(p.heads, -1, 1, 3)),
        a(random_floats(p.heads, -4, -0.01f, 4)),
        d(random_floats(p.heads, -1, 1, 5)) {}

  SsdArgs args(const StateSlots& state, const int32_t* query_start_loc, int64_t rows, std::vector<float>& y) const {
    SsdArgs s;
    const int64_t inner = problem.heads * problem.head_dim;
    s.x = xbc.data();
    s.b = xbc.data() + inner;
    s.c = s.b + problem.groups * problem.state_size;
    s.x_stride = s.b_stride = s.c_stride = width;
    s.dt = dt.data();
    s.dt_stride = problem.heads;
    s.dt_bias = problem.skip ? bias.data() : nullptr;
    s.dt_min = problem.dt_min;
    s.dt_max = problem.dt_max;
    s.a = a.data();
    s.d = problem.skip ? d.data() : nullptr;
    s.y = y.data();
    s.y_stride = inner;
    s.state = state;
    s.state.by_token = problem.by_token;
    s.query_start_loc = query_start_loc;
    s.rows = rows;
    s.num_heads = problem.heads;
    s.head_dim = problem.head_dim;
    s.num_groups = problem.groups;
    s.state_size = problem.state_size;
    s.chunk_size = problem.chunk_size;
    return s;
  }
  int64_t inner() const { return problem.heads * problem.head_dim; }
  int64_t state_elements() const { return inner() * problem.state_size; }
};

std::vector<OpOutput> run(const Problem& p, const SlotRows& rows, SsdFunction function, ThreadPool& pool) {
  const Inputs inputs(p, rows.tokens());
  StatePool states(rows.slots, inputs.state_elements(), p.dtype);
  for (int64_t slot : rows.filled) states.fill(slot, 10 + static_cast<uint64_t>(slot));
  std::vector<float> y(static_cast<size_t>(rows.tokens() * inputs.inner()), 77.0f);
  Workspace workspace;
  function(inputs.args(states.slots(rows.src.data(), rows.dst.data(), rows.has_initial_state.data()),
                       rows.query_start_loc.data(), rows.rows(), y),
           pool, workspace);
  return {{"y", y}, {"state", states.all()}};
}

TEST(Ssd, CandidatesAgreeOnEveryKindOfRow) {
  ThreadPool pool(2);
  for (const Problem& p :
       {Problem{6, 16, 2, 16}, Problem{4, 64, 1, 128}, Problem{3, 20, 3, 10}, Problem{8, 7, 1, 33},
        Problem{4, 40, 2, 24, DType::kBFloat16}, Problem{2, 64, 1, 64, DType::kFloat16},
        Problem{6, 24, 1, 32, DType::kFloat32, 0.001f, 0.1f},
        Problem{2, 16, 1, 16, DType::kFloat32, 0.0f, std::numeric_limits<float>::infinity(), 16},
        Problem{2, 16, 1, 16, DType::kFloat32, 0.0f, std::numeric_limits<float>::infinity(), 50, false}}) {
    SCOPED_TRACE(::testing::Message() << p.heads << " heads of " << p.head_dim << ", " << p.groups << " groups, state "
                                      << p.state_size << ", chunk " << p.chunk_size);
    expect_candidates_agree(ssd_chunk_scan(), with_state_rounding(kSsdTolerance, p.dtype),
                            [&](SsdFunction f) { return run(p, SlotRows::prefill(), f, pool); });
    expect_candidates_agree(ssd_state_update(), with_state_rounding(kSsdTolerance, p.dtype),
                            [&](SsdFunction f) { return run(p, SlotRows::decode(), f, pool); });
  }
}

// Of 1: token by token.
Problem in_chunks_of(int64_t chunk) {
  Problem p{4, 32, 2, 48};
  p.chunk_size = chunk;
  p.by_token = chunk == 1;
  return p;
}

// What rows leave at places inside them is what rows that end there leave at their ends.
TEST(Ssd, StatesInsideRowsAreThoseOfShorterRows) {
  ThreadPool pool(2);
  struct Row {
    int64_t tokens;
    std::vector<int32_t> offsets;
    bool fresh;
  };
  const std::vector<Row> rows = {
      {150, {1, 31, 32, 33, 100, 149}, true}, {70, {}, false}, {5, {1, 4}, false}, {64, {32}, false}};
  for (const int64_t chunk : {0, 1, 16})
    for (const auto& candidate : {ssd_chunk_scan().selected().function, ssd_chunk_scan().reference().function}) {
      const Problem p = in_chunks_of(chunk);
      const Inputs inputs(p, 289);
      const auto state_at = [&](size_t row, int32_t length) {  // alone, as a row of that length
        int32_t begin = 0;
        for (size_t r = 0; r < row; ++r) begin += static_cast<int32_t>(rows[r].tokens);
        const int32_t loc[2] = {0, length}, slot = 1;
        const uint8_t initial = rows[row].fresh ? 0 : 1;
        StatePool states(2, inputs.state_elements(), p.dtype);
        if (initial != 0) states.fill(1, 100 + row);
        std::vector<float> y(static_cast<size_t>(length * inputs.inner()));
        SsdArgs args = inputs.args(states.slots(&slot, &slot, &initial), loc, 1, y);
        args.x += begin * args.x_stride;
        args.b += begin * args.b_stride;
        args.c += begin * args.c_stride;
        args.dt += begin * args.dt_stride;
        Workspace workspace;
        candidate(args, pool, workspace);
        return states.slot(1);
      };
      std::vector<int32_t> loc = {0}, slot, starts = {0}, offsets, slots;
      std::vector<uint8_t> initial;
      int32_t next_slot = 1;
      for (const Row& row : rows) {
        loc.push_back(loc.back() + static_cast<int32_t>(row.tokens));
        slot.push_back(next_slot++);
        initial.push_back(row.fresh ? 0 : 1);
        for (const int32_t offset : row.offsets) {
          offsets.push_back(offset);
          slots.push_back(next_slot++);
        }
        starts.push_back(static_cast<int32_t>(offsets.size()));
      }
      StatePool states(next_slot, inputs.state_elements(), p.dtype);
      for (size_t r = 0; r < rows.size(); ++r)
        if (!rows[r].fresh) states.fill(slot[r], 100 + r);
      std::vector<float> y(static_cast<size_t>(289 * inputs.inner()));
      SsdArgs args = inputs.args(states.slots(slot.data(), slot.data(), initial.data()), loc.data(), 4, y);
      args.exports = {starts.data(), offsets.data(), slots.data()};
      Workspace workspace;
      candidate(args, pool, workspace);
      for (size_t r = 0, i = 0; r < rows.size(); ++r) {
        for (const int32_t offset : rows[r].offsets)
          expect_close(states.slot(slots[i++]), state_at(r, offset), kSsdTolerance,
                       "row " + std::to_string(r) + " after " + std::to_string(offset));
        expect_close(states.slot(slot[r]), state_at(r, static_cast<int32_t>(rows[r].tokens)), kSsdTolerance,
                     "row " + std::to_string(r));
      }
    }
}

TEST(Ssd, MainPathIsVectorised) {
  expect_vectorised(ssd_chunk_scan());
  expect_vectorised(ssd_state_update());
}

TEST(Ssd, NullRowsGiveZerosAndTouchNoState) {
  ThreadPool pool(1);
  SlotRows rows;
  rows.add_null(30, 0);
  rows.add_null(2, -1);
  rows.slots = 2;
  const auto out = run({2, 16, 1, 16}, rows, ssd_chunk_scan().selected().function, pool);
  for (float value : out[0].values) EXPECT_EQ(value, 0.0f);
  for (float value : out[1].values) EXPECT_TRUE(std::isnan(value));
}

std::vector<float> feed(const Inputs& inputs, int64_t tokens, int64_t piece, SsdFunction function, ThreadPool& pool) {
  const int32_t slot = 1;
  StatePool states(2, inputs.state_elements(), DType::kFloat32);
  std::vector<float> y(static_cast<size_t>(tokens * inputs.inner()));
  Workspace workspace;
  for (int64_t t = 0; t < tokens; t += piece) {
    const uint8_t initial = t > 0;
    const int32_t loc[2] = {0, static_cast<int32_t>(std::min(piece, tokens - t))};
    SsdArgs args = inputs.args(states.slots(&slot, &slot, &initial), loc, 1, y);
    args.x += t * args.x_stride;
    args.b += t * args.b_stride;
    args.c += t * args.c_stride;
    args.dt += t * args.dt_stride;
    args.y += t * args.y_stride;
    function(args, pool, workspace);
  }
  const std::vector<float> state = states.slot(1);
  y.insert(y.end(), state.begin(), state.end());
  return y;
}

std::vector<float> feed(const Inputs& inputs, int64_t tokens, int64_t piece, bool update, ThreadPool& pool) {
  return feed(inputs, tokens, piece, (update ? ssd_state_update() : ssd_chunk_scan()).selected().function, pool);
}

TEST(Ssd, CutsOfAPromptDifferByRoundingOnly) {
  ThreadPool pool(2);
  const Inputs inputs({4, 32, 2, 48}, 150);
  const std::vector<float> whole = feed(inputs, 150, 150, false, pool);
  for (int64_t piece : {1, 3, 7, 64, 100}) {
    expect_close(feed(inputs, 150, piece, false, pool), whole, kSsdTolerance, "pieces of " + std::to_string(piece));
  }
  expect_close(feed(inputs, 150, 1, true, pool), whole, kSsdTolerance, "steps of one token");
}

TEST(Ssd, TokenByTokenNoCutOfAPromptChangesABit) {
  for (int threads : {1, 3}) {
    ThreadPool pool(threads);
    for (const Problem& p : {Problem{4, 32, 2, 48}, Problem{3, 20, 3, 10, DType::kFloat32, 0.001f, 0.1f}}) {
      Inputs inputs(p, 150);
      inputs.problem.by_token = true;
      for_tiers(ssd_chunk_scan(), ssd_state_update(), [&](SsdFunction scan, SsdFunction update) {
        const std::vector<float> steps = feed(inputs, 150, 1, update, pool);
        for (int64_t piece : {1, 3, 7, 64, 100, 150}) EXPECT_EQ(feed(inputs, 150, piece, scan, pool), steps) << piece;
      });
    }
  }
}

// exp(dt * A) of a chunk far below the smallest float, and next to 1, in one batch of heads.
TEST(Ssd, ExtremeDecaysStayFinite) {
  ThreadPool pool(2);
  Inputs inputs({4, 16, 1, 16}, 200);
  inputs.a = {-1000.0f, -16.0f, -1e-4f, -1e-7f};
  const std::vector<float> whole = feed(inputs, 200, 200, false, pool);
  for (float value : whole) ASSERT_TRUE(std::isfinite(value));
  expect_close(feed(inputs, 200, 1, true, pool), whole, kSsdTolerance, "steps of one token");
}

TEST(Ssd, TimeStepLimitHoldsInBothForms) {
  ThreadPool pool(1);
  const Problem limited{2, 16, 1, 16, DType::kFloat32, 0.01f, 0.05f};
  Inputs inputs(limited, 40);
  Inputs free = inputs;
  free.problem.dt_min = 0.0f;
  free.problem.dt_max = std::numeric_limits<float>::infinity();
  const std::vector<float> prefill = feed(inputs, 40, 40, false, pool);
  expect_close(feed(inputs, 40, 1, true, pool), prefill, kSsdTolerance, "steps of one token");
  EXPECT_NE(feed(free, 40, 40, false, pool), prefill);
}

}  // namespace
}  // namespace coluber
