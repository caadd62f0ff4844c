// SPDX-License-Identifier: Apache-2.0
#include "kernels/linear/gated_linear_attention.h"

#include <gtest/gtest.h>

#include "kernels/linear/linear_run_test.h"

namespace coluber {
namespace {

enum class Decay { kConstant, kToken, kChannel };

struct Problem {
  Decay decay;
  int64_t heads, group, key_dim, value_dim;
  DType dtype = DType::kFloat32;
  int64_t chunk_size = 0;
  float scale = 1.0f;
  bool by_token = false;
};

// q | k | v of a token lie next to each other.
struct Inputs {
  Problem problem;
  std::vector<float> qkv, slopes, log_decay, decay;

  Inputs(const Problem& p, int64_t tokens)
      : problem(p),
        qkv(random_floats(tokens * stride(), -1, 1, 1)),
        slopes(random_floats(p.heads, 0, 1, 2)),
        log_decay(random_floats(tokens * shared(), -2, 0, 3)),
        decay(random_floats(tokens * shared() * p.key_dim, 0.3f, 1, 4)) {}

  int64_t shared() const { return problem.heads / problem.group; }
  int64_t stride() const { return problem.heads * problem.key_dim + shared() * (problem.key_dim + problem.value_dim); }
  int64_t state_elements() const { return problem.heads * problem.key_dim * problem.value_dim; }
  int64_t width() const { return problem.heads * problem.value_dim; }

  // From token `first` on.
  GatedLinearAttentionArgs args(const StateSlots& state, const int32_t* query_start_loc, int64_t rows,
                                std::vector<float>& o, int64_t first) const {
    const Problem& p = problem;
    GatedLinearAttentionArgs a;
    a.q = qkv.data() + first * stride();
    a.k = a.q + p.heads * p.key_dim;
    a.v = a.k + shared() * p.key_dim;
    a.q_stride = a.k_stride = a.v_stride = stride();
    a.q_head_stride = a.k_head_stride = p.key_dim;
    a.v_head_stride = p.value_dim;
    a.group = p.group;
    if (p.decay == Decay::kConstant) a.slopes = slopes.data();
    if (p.decay == Decay::kToken) a.decay_stride = shared(), a.log_decay = log_decay.data() + first * a.decay_stride;
    if (p.decay == Decay::kChannel)
      a.decay_stride = shared() * p.key_dim, a.decay = decay.data() + first * a.decay_stride;
    a.scale = p.scale;
    a.o = o.data() + first * width();
    a.o_stride = width();
    a.state = state;
    a.state.by_token = p.by_token;
    a.query_start_loc = query_start_loc;
    a.rows = rows;
    a.num_heads = p.heads;
    a.key_dim = p.key_dim;
    a.value_dim = p.value_dim;
    a.chunk_size = p.chunk_size;
    return a;
  }
};

std::vector<OpOutput> run(const Problem& p, const SlotRows& rows, GatedLinearAttentionFunction function,
                          ThreadPool& pool) {
  return run_rows<Inputs>(p, rows, function, pool);
}

Tolerance tolerance_of(DType dtype) { return with_state_rounding(kGatedLinearAttentionTolerance, dtype); }

const Problem kProblems[] = {
    {Decay::kConstant, 4, 2, 16, 40, DType::kFloat32, 0, 0.25f},
    {Decay::kConstant, 2, 1, 70, 7, DType::kFloat32, 24},
    {Decay::kToken, 3, 1, 20, 36, DType::kFloat32, 0, 0.5f},
    {Decay::kToken, 4, 4, 33, 128, DType::kBFloat16},
    {Decay::kChannel, 2, 1, 8, 16, DType::kFloat32, 0, 0.35f},
    {Decay::kChannel, 4, 2, 37, 50},
    {Decay::kChannel, 1, 1, 128, 256, DType::kFloat32, 0, 0.09f},
    {Decay::kChannel, 3, 3, 64, 130, DType::kFloat16},
    {Decay::kChannel, 2, 1, 5, 3, DType::kBFloat16},
};

TEST(GatedLinearAttention, CandidatesAgreeOnEveryKindOfRowAndDecay) {
  ThreadPool pool(2);
  for (const Problem& p : kProblems) {
    SCOPED_TRACE(::testing::Message() << "decay " << static_cast<int>(p.decay) << ", " << p.heads << " heads, "
                                      << p.key_dim << " by " << p.value_dim);
    expect_candidates_agree(gated_linear_attention(), tolerance_of(p.dtype),
                            [&](GatedLinearAttentionFunction f) { return run(p, SlotRows::prefill(), f, pool); });
    expect_candidates_agree(gated_linear_attention_update(), tolerance_of(p.dtype),
                            [&](GatedLinearAttentionFunction f) { return run(p, SlotRows::decode(), f, pool); });
  }
}

TEST(GatedLinearAttention, MainPathIsVectorised) {
  expect_vectorised(gated_linear_attention());
  expect_vectorised(gated_linear_attention_update());
}

// Columns are cut among threads where heads are few.
TEST(GatedLinearAttention, ThreadsDoNotChangeABit) {
  ThreadPool one(1), many(7);
  for (Decay decay : {Decay::kConstant, Decay::kToken, Decay::kChannel}) {
    const Problem p{decay, 1, 1, 24, 300};
    for (const SlotRows& rows : {SlotRows::prefill(), SlotRows::decode()}) {
      const auto& operation = rows.tokens() == rows.rows() ? gated_linear_attention_update() : gated_linear_attention();
      const auto a = run(p, rows, operation.selected().function, one);
      const auto b = run(p, rows, operation.selected().function, many);
      for (size_t i = 0; i < a.size(); ++i) {
        ASSERT_EQ(a[i].values.size(), b[i].values.size());
        EXPECT_EQ(std::memcmp(a[i].values.data(), b[i].values.data(), a[i].values.size() * sizeof(float)), 0)
            << a[i].name << ", decay " << static_cast<int>(decay);
      }
    }
  }
}

std::vector<float> feed(const Inputs& inputs, int64_t tokens, int64_t piece, bool update, ThreadPool& pool) {
  return run_pieces(inputs, tokens, piece, update ? gated_linear_attention_update() : gated_linear_attention(), pool);
}

TEST(GatedLinearAttention, TokenByTokenNoCutOfAPromptChangesABit) {
  for (int threads : {1, 3}) {
    ThreadPool pool(threads);
    for (Decay decay : {Decay::kConstant, Decay::kToken, Decay::kChannel}) {
      for (int64_t value_dim : {20, 150}) {
        Inputs inputs({decay, 4, 2, 24, value_dim}, 150);
        inputs.problem.by_token = true;
        for_tiers(gated_linear_attention(), gated_linear_attention_update(),
                  [&](GatedLinearAttentionFunction attend, GatedLinearAttentionFunction update) {
                    const std::vector<float> steps = run_pieces(inputs, 150, 1, update, pool);
                    for (int64_t piece : {1, 3, 7, 64, 100, 150})
                      EXPECT_EQ(run_pieces(inputs, 150, piece, attend, pool), steps) << piece;
                  });
      }
    }
  }
}

// Bit for bit where rows go token by token; in chunks, each place begins a new one.
TEST(GatedLinearAttention, StatesInsideRowsAreThoseOfShorterRows) {
  ThreadPool pool(2);
  for (const Problem& p :
       {Problem{Decay::kConstant, 4, 2, 24, 150}, Problem{Decay::kToken, 3, 1, 20, 36},
        Problem{Decay::kChannel, 2, 1, 37, 50}, Problem{Decay::kChannel, 2, 2, 16, 20, DType::kBFloat16}})
    for (const bool by_token : {true, false})
      for_tiers(gated_linear_attention(), [&](GatedLinearAttentionFunction f) {
        Inputs inputs(p, 90);
        inputs.problem.by_token = by_token;
        const auto run_rows = [&](const std::vector<int32_t>& loc, const StateExports& exports, std::vector<float>& o) {
          return run_two_rows(inputs, p.dtype, f, pool, loc, exports, o);
        };
        if (by_token) return expect_exports_are_ends_of_shorter_rows(run_rows);
        expect_exports_are_ends_of_shorter_rows(run_rows,
                                                [&](const auto& got, const auto& want, const std::string& what) {
                                                  expect_close(got, want, tolerance_of(p.dtype), what);
                                                });
      });
}

// Decays from none at all to those that leave nothing, side by side.
TEST(GatedLinearAttention, CutsOfAPromptDifferByRoundingOnlyHoweverFastItForgets) {
  ThreadPool pool(2);
  for (Decay decay : {Decay::kConstant, Decay::kToken, Decay::kChannel}) {
    Inputs inputs({decay, 4, 1, 24, 20}, 200);
    inputs.slopes = {0.0f, 0.004f, 0.9f, 200.0f};
    for (size_t i = 0; i < inputs.log_decay.size(); ++i)
      inputs.log_decay[i] = i % 5 == 0 ? -300.0f : i % 3 == 0 ? 0.0f : inputs.log_decay[i];
    for (size_t i = 0; i < inputs.decay.size(); ++i)
      inputs.decay[i] = i % 7 == 0 ? 0.0f : i % 5 == 0 ? 1e-30f : i % 3 == 0 ? 1.0f : inputs.decay[i];
    const std::vector<float> whole = feed(inputs, 200, 200, false, pool);
    for (float value : whole) ASSERT_TRUE(std::isfinite(value));
    for (int64_t piece : {1, 3, 7, 64, 129}) {
      expect_close(feed(inputs, 200, piece, false, pool), whole, kGatedLinearAttentionTolerance,
                   "decay " + std::to_string(static_cast<int>(decay)) + ", pieces of " + std::to_string(piece));
    }
    expect_close(feed(inputs, 200, 1, true, pool), whole, kGatedLinearAttentionTolerance, "steps of one token");
  }
}

}  // namespace
}  // namespace coluber
