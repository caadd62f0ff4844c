// SPDX-License-Identifier: Apache-2.0
#include "kernels/linear/lightning_attention.h"

#include <gtest/gtest.h>

#include "kernels/linear/linear_run_test.h"

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

  // From token `first` on.
  LightningAttentionArgs args(const StateSlots& state, const int32_t* query_start_loc, int64_t rows,
                              std::vector<float>& o, int64_t first) const {
    LightningAttentionArgs a;
    a.q = qkv.data() + first * 3 * problem.heads * problem.dim;
    a.k = a.q + problem.dim;
    a.v = a.k + problem.dim;
    a.token_stride = 3 * problem.heads * problem.dim;
    a.head_stride = 3 * problem.dim;
    a.slopes = slopes.data();
    a.o = o.data() + first * width();
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
  return run_rows<Inputs>(p, rows, function, pool);
}

Tolerance tolerance_of(DType dtype) { return with_state_rounding(kLightningAttentionTolerance, dtype); }

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
  return run_pieces(inputs, tokens, piece, update ? lightning_attention_update() : lightning_attention(), pool);
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
