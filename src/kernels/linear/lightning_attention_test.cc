// SPDX-License-Identifier: Apache-2.0
#include "kernels/linear/lightning_attention.h"

#include <gtest/gtest.h>

#include "kernels/op_test.h"
#include "kernels/state_slots_test.h"

namespace coluber {
namespace {

struct Problem {
  int64_t heads, dim;
  DType dtype = DType::kFloat32;
  int64_t chunk_size = 0;
};

// q | k | v interleaved by head, as MiniMax has them.
struct Inputs {
  Problem problem;
  std::vector<float> qkv, slopes;

  Inputs(const Problem& p, int64_t tokens)
      : problem(p),
        qkv(random_floats(tokens * 3 * p.heads * p.dim, -1, 1, 1)),
        slopes(random_floats(p.heads, 0, 1, 2)) {}

  LightningAttentionArgs args(const StateSlots& state, const int32_t* query_start_loc, int64_t rows,
                              std::vector<float>& o) const {
    LightningAttentionArgs a;
    a.q = qkv.data();
    a.k = a.q + problem.dim;
    a.v = a.k + problem.dim;
    a.token_stride = 3 * problem.heads * problem.dim;
    a.head_stride = 3 * problem.dim;
    a.slopes = slopes.data();
    a.o = o.data();
    a.o_stride = problem.heads * problem.dim;
    a.state = state;
    a.query_start_loc = query_start_loc;
    a.rows = rows;
    a.num_heads = problem.heads;
    a.head_dim = problem.dim;
    a.chunk_size = problem.chunk_size;
    return a;
  }
  int64_t state_elements() const { return problem.heads * problem.dim * problem.dim; }
  int64_t width() const { return problem.heads * problem.dim; }
};

std::vector<OpOutput> run(const Problem& p, const SlotRows& rows, LightningAttentionFunction function,
                          ThreadPool& pool) {
  const Inputs inputs(p, rows.tokens());
  StatePool states(rows.slots, inputs.state_elements(), p.dtype);
  for (int64_t slot : rows.filled) states.fill(slot, 10 + static_cast<uint64_t>(slot));
  std::vector<float> o(static_cast<size_t>(rows.tokens() * inputs.width()), 77.0f);
  Workspace workspace;
  function(inputs.args(states.slots(rows.src.data(), rows.dst.data(), rows.has_initial_state.data()),
                       rows.query_start_loc.data(), rows.rows(), o),
           pool, workspace);
  return {{"o", o}, {"state", states.all()}};
}

// A row of a few tokens rounds a 16-bit state at each of them, where the reference rounds once.
Tolerance tolerance_of(DType dtype) {
  Tolerance tolerance = kLightningAttentionTolerance;
  if (dtype == DType::kBFloat16) tolerance.relative = 1.0 / 64, tolerance.of_rms = 1.0 / 64;
  if (dtype == DType::kFloat16) tolerance.relative = 1.0 / 512, tolerance.of_rms = 1.0 / 512;
  return tolerance;
}

TEST(LightningAttention, CandidatesAgreeOnEveryKindOfRow) {
  ThreadPool pool(2);
  for (const Problem& p :
       {Problem{4, 16}, Problem{2, 128}, Problem{3, 20}, Problem{1, 7}, Problem{2, 70},
        Problem{2, 36, DType::kBFloat16}, Problem{3, 64, DType::kFloat16}, Problem{2, 32, DType::kFloat32, 24}}) {
    SCOPED_TRACE(::testing::Message() << p.heads << " heads of " << p.dim << ", chunk " << p.chunk_size);
    expect_candidates_agree(lightning_attention(), tolerance_of(p.dtype),
                            [&](LightningAttentionFunction f) { return run(p, SlotRows::prefill(), f, pool); });
    expect_candidates_agree(lightning_attention_update(), tolerance_of(p.dtype),
                            [&](LightningAttentionFunction f) { return run(p, SlotRows::decode(), f, pool); });
  }
}

TEST(LightningAttention, MainPathIsVectorised) {
  expect_vectorised(lightning_attention());
  expect_vectorised(lightning_attention_update());
}

TEST(LightningAttention, NullRowsGiveZerosAndTouchNoState) {
  ThreadPool pool(1);
  SlotRows rows;
  rows.add_null(30, 0);
  rows.add_null(2, -1);
  rows.slots = 2;
  const auto out = run({2, 16}, rows, lightning_attention().selected().function, pool);
  for (float value : out[0].values) EXPECT_EQ(value, 0.0f);
  for (float value : out[1].values) EXPECT_TRUE(std::isnan(value));
}

std::vector<float> feed(const Inputs& inputs, int64_t tokens, int64_t piece, bool update, ThreadPool& pool) {
  const int32_t slot = 1;
  StatePool states(2, inputs.state_elements(), DType::kFloat32);
  std::vector<float> o(static_cast<size_t>(tokens * inputs.width()));
  Workspace workspace;
  for (int64_t t = 0; t < tokens; t += piece) {
    const uint8_t initial = t > 0;
    const int32_t loc[2] = {0, static_cast<int32_t>(std::min(piece, tokens - t))};
    LightningAttentionArgs args = inputs.args(states.slots(&slot, &slot, &initial), loc, 1, o);
    args.q += t * args.token_stride;
    args.k += t * args.token_stride;
    args.v += t * args.token_stride;
    args.o += t * args.o_stride;
    (update ? lightning_attention_update() : lightning_attention())(args, pool, workspace);
  }
  const std::vector<float> state = states.slot(1);
  o.insert(o.end(), state.begin(), state.end());
  return o;
}

// Slopes from no decay at all to one that underflows within a chunk.
TEST(LightningAttention, CutsOfAPromptDifferByRoundingOnly) {
  ThreadPool pool(2);
  Inputs inputs({4, 24}, 200);
  inputs.slopes = {0.0f, 0.004f, 0.9f, 6.0f};
  const std::vector<float> whole = feed(inputs, 200, 200, false, pool);
  for (float value : whole) ASSERT_TRUE(std::isfinite(value));
  for (int64_t piece : {1, 3, 7, 64, 129}) {
    expect_close(feed(inputs, 200, piece, false, pool), whole, kLightningAttentionTolerance,
                 "pieces of " + std::to_string(piece));
  }
  expect_close(feed(inputs, 200, 1, true, pool), whole, kLightningAttentionTolerance, "steps of one token");
}

}  // namespace
}  // namespace coluber
