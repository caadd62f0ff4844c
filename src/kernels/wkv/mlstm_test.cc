// SPDX-License-Identifier: Apache-2.0
#include "kernels/wkv/mlstm.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/op_test.h"
#include "kernels/state_slots_test.h"

namespace coluber {
namespace {

struct Problem {
  int64_t heads, keys, values;
  DType dtype = DType::kFloat32;
  float soft_cap = 15;
  float gates = 4;  // their largest value
  int64_t qkv() const { return heads * (2 * keys + values); }
};

// q | k | v and i | f as a layer has them; C, then n and m in pools of their own, which are float32.
struct Inputs {
  Problem p;
  std::vector<float> qkv, gates;
  Inputs(const Problem& problem, int64_t tokens)
      : p(problem),
        qkv(random_floats(tokens * p.qkv(), -1, 1, 1)),
        gates(random_floats(tokens * 2 * p.heads, -p.gates, p.gates, 2)) {}

  MlstmArgs args(int64_t first, std::vector<float>& y) const {
    MlstmArgs a;
    a.q = qkv.data() + first * p.qkv();
    a.k = a.q + p.heads * p.keys;
    a.v = a.k + p.heads * p.keys;
    a.qkv_stride = p.qkv();
    a.i = gates.data() + first * 2 * p.heads;
    a.f = a.i + p.heads;
    a.gate_stride = 2 * p.heads;
    a.soft_cap = p.soft_cap;
    a.y = y.data() + first * p.heads * p.values;
    a.num_heads = p.heads;
    a.key_dim = p.keys;
    a.value_dim = p.values;
    return a;
  }
};

struct Pools {
  StatePool c, n, m;
  Pools(const Problem& p, int64_t slots)
      : c(slots, p.heads * p.keys * p.values, p.dtype),
        n(slots, p.heads * p.keys, DType::kFloat32),
        m(slots, p.heads, DType::kFloat32) {}
  void bind(MlstmArgs& args, const int32_t* src, const int32_t* dst, const uint8_t* initial) {
    args.c = c.slots(src, dst, initial);
    args.n = n.slots(src, dst, initial);
    args.m = m.slots(src, dst, initial);
  }
  std::vector<float> slot(int64_t slot) const {
    std::vector<float> all;
    for (const StatePool* states : {&c, &n, &m}) {
      const std::vector<float> state = states->slot(slot);
      all.insert(all.end(), state.begin(), state.end());
    }
    return all;
  }
};

std::vector<OpOutput> run(const Problem& p, const SlotRows& rows, bool update, MlstmFunction f, ThreadPool& pool) {
  const Inputs in(p, rows.tokens());
  Pools pools(p, rows.slots);
  for (int64_t slot : rows.filled) {
    const auto seed = static_cast<uint64_t>(slot);
    pools.c.fill(slot, seed), pools.n.fill(slot, seed), pools.m.fill(slot, seed);
  }
  std::vector<float> y(static_cast<size_t>(rows.tokens() * p.heads * p.values), 7.0f);
  MlstmArgs args = in.args(0, y);
  pools.bind(args, rows.src.data(), rows.dst.data(), rows.has_initial_state.data());
  args.query_start_loc = update ? nullptr : rows.query_start_loc.data();
  args.rows = rows.rows();
  args.tokens = rows.tokens();
  Workspace workspace;
  f(args, pool, workspace);
  return {{"y", y}, {"c", pools.c.all()}, {"n", pools.n.all()}, {"m", pools.m.all()}};
}

TEST(Mlstm, CandidatesAgreeOnEveryKindOfRow) {
  ThreadPool pool(2);
  for (const Problem& p : {Problem{4, 16, 32}, Problem{2, 32, 32}, Problem{3, 20, 7}, Problem{1, 1, 1},
                           Problem{2, 9, 70}, Problem{2, 64, 48, DType::kFloat32, 0},
                           Problem{2, 16, 40, DType::kBFloat16}, Problem{2, 24, 64, DType::kFloat16}}) {
    SCOPED_TRACE(testing::Message() << p.heads << " heads of " << p.keys << " keys and " << p.values << " values");
    for (bool update : {false, true}) {
      const SlotRows rows = update ? SlotRows::decode() : SlotRows::prefill();
      expect_candidates_agree(mlstm(), with_state_rounding(kMlstmTolerance, p.dtype),
                              [&](MlstmFunction f) { return run(p, rows, update, f, pool); });
    }
  }
}

TEST(Mlstm, MainPathIsVectorised) { expect_vectorised(mlstm()); }

std::vector<float> in_pieces(const Inputs& in, int64_t tokens, int64_t piece, bool update, ThreadPool& pool) {
  const int32_t slot = 1;
  Pools pools(in.p, 2);
  std::vector<float> y(static_cast<size_t>(tokens * in.p.heads * in.p.values));
  Workspace workspace;
  for (int64_t t = 0; t < tokens; t += piece) {
    const uint8_t initial = t > 0;
    const int32_t loc[2] = {0, static_cast<int32_t>(std::min(piece, tokens - t))};
    MlstmArgs args = in.args(t, y);
    pools.bind(args, &slot, &slot, &initial);
    args.query_start_loc = update ? nullptr : loc;
    args.rows = 1;
    args.tokens = loc[1];
    mlstm()(args, pool, workspace);
  }
  const std::vector<float> state = pools.slot(1);
  y.insert(y.end(), state.begin(), state.end());
  return y;
}

TEST(Mlstm, CutsOfAPromptGiveTheSameBits) {
  ThreadPool pool(2);
  const Inputs in({2, 24, 40}, 90);
  const std::vector<float> whole = in_pieces(in, 90, 90, false, pool);
  for (int64_t piece : {1, 2, 3, 7, 64})
    EXPECT_EQ(in_pieces(in, 90, piece, false, pool), whole) << "pieces of " << piece;
  EXPECT_EQ(in_pieces(in, 90, 1, true, pool), whole) << "steps of one token";
}

TEST(Mlstm, StatesInsideRowsAreThoseOfShorterRows) {
  ThreadPool pool(2);
  const std::vector<int32_t> slot = {1, 2};
  const std::vector<uint8_t> initial = {1, 0};
  for (const Problem& p : {Problem{2, 24, 40}, Problem{1, 9, 7, DType::kBFloat16}}) {
    const Inputs in(p, 90);
    for_tiers(mlstm(), [&](MlstmFunction f) {
      expect_exports_are_ends_of_shorter_rows(
          [&](const std::vector<int32_t>& loc, const StateExports& exports, std::vector<float>& y) {
            Pools pools(p, 7);
            pools.c.fill(1, 9), pools.n.fill(1, 10), pools.m.fill(1, 11);
            y.assign(static_cast<size_t>(90 * p.heads * p.values), 0.0f);
            MlstmArgs args = in.args(0, y);
            pools.bind(args, slot.data(), slot.data(), initial.data());
            args.query_start_loc = loc.data();
            args.c_exports = args.nm_exports = exports;
            args.rows = 2;
            args.tokens = loc[2];
            Workspace workspace;
            f(args, pool, workspace);
            return pools;
          });
    });
  }
}

// e^200 is no float32: only exponents relative to the largest may be raised.
TEST(Mlstm, BearsGatesWhoseExponentialsOverflow) {
  ThreadPool pool(1);
  const Problem p{2, 16, 32, DType::kFloat32, 0, 200};
  for (float value : in_pieces(Inputs(p, 300), 300, 300, false, pool)) ASSERT_TRUE(std::isfinite(value));
  SlotRows rows;
  rows.add(60, false, false);
  expect_candidates_agree(mlstm(), kMlstmTolerance, [&](MlstmFunction f) { return run(p, rows, false, f, pool); });
}

}  // namespace
}  // namespace coluber
