// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/op_test.h"
#include "kernels/state_slots_test.h"
#include "kernels/wkv/wkv4.h"
#include "kernels/wkv/wkv6.h"
#include "kernels/wkv/wkv7.h"

namespace coluber {
namespace {

// Inputs of one problem, and the call of one recurrence on rows of them. `tokens` follow one another from `first` on.
struct Problem {
  int64_t heads = 1, dim = 1;
  bool one_decay = false;  // RWKV-5
  int64_t width() const { return heads * dim; }
};

struct Inputs {
  Problem problem;
  std::vector<float> r, w, k, v, a, b, u;
  Inputs(const Problem& p, int64_t tokens) : problem(p) {
    const int64_t size = tokens * p.width();
    r = random_floats(size, -1, 1, 1);
    w = random_floats(size, 0.5f, 1, 2);
    k = random_floats(size, -1, 1, 3);
    v = random_floats(size, -1, 1, 4);
    u = random_floats(p.width(), -1, 1, 5);
    a = random_floats(size, -1, 1, 6);
    b = a;
    // As the model has them: |a| = 1 by head, b = -a times a rate below 1, so that no state grows.
    const std::vector<float> rate = random_floats(size, 0, 1, 7);
    for (int64_t h = 0; h < tokens * p.heads; ++h) {
      double square = 0;
      for (int64_t i = 0; i < p.dim; ++i) square += std::pow(a[static_cast<size_t>(h * p.dim + i)], 2);
      for (int64_t i = 0; i < p.dim; ++i) {
        const auto at = static_cast<size_t>(h * p.dim + i);
        a[at] = static_cast<float>(a[at] / std::sqrt(square + 1e-12));
        b[at] = -a[at] * rate[at];
      }
    }
  }
};

struct Rows {
  StateSlots state;
  const int32_t* query_start_loc;
  int64_t rows;
  int64_t first = 0;
  StateExports exports = {};
};

void call(Wkv6Function f, const Inputs& in, const Rows& rows, std::vector<float>& y, ThreadPool& pool) {
  const int64_t at = rows.first * in.problem.width();
  Wkv6Args args;
  args.r = in.r.data() + at;
  args.w_stride = in.problem.one_decay ? 0 : in.problem.width();
  args.w = in.w.data() + (in.problem.one_decay ? 0 : at);
  args.k = in.k.data() + at;
  args.v = in.v.data() + at;
  args.u = in.u.data();
  args.y = y.data() + at;
  args.state = rows.state;
  args.query_start_loc = rows.query_start_loc;
  args.exports = rows.exports;
  args.rows = rows.rows;
  args.num_heads = in.problem.heads;
  args.head_dim = in.problem.dim;
  Workspace workspace;
  f(args, pool, workspace);
}

void call(Wkv7Function f, const Inputs& in, const Rows& rows, std::vector<float>& y, ThreadPool& pool) {
  const int64_t at = rows.first * in.problem.width();
  Wkv7Args args;
  args.r = in.r.data() + at;
  args.w = in.w.data() + at;
  args.k = in.k.data() + at;
  args.v = in.v.data() + at;
  args.a = in.a.data() + at;
  args.b = in.b.data() + at;
  args.y = y.data() + at;
  args.state = rows.state;
  args.query_start_loc = rows.query_start_loc;
  args.exports = rows.exports;
  args.rows = rows.rows;
  args.num_heads = in.problem.heads;
  args.head_dim = in.problem.dim;
  Workspace workspace;
  f(args, pool, workspace);
}

StateSlots shifted(StateSlots slots, int64_t bytes) {
  slots.base = static_cast<std::byte*>(slots.base) + bytes;
  return slots;
}

void call(Wkv4Function f, const Inputs& in, const Rows& rows, std::vector<float>& y, ThreadPool& pool) {
  const int64_t cols = in.problem.width(), at = rows.first * cols;
  std::vector<float> decay = in.w;
  for (float& value : decay) value = -3.0f * value;
  Wkv4Args args;
  args.r = in.r.data() + at;
  args.k = in.k.data() + at;
  args.v = in.v.data() + at;
  args.decay = decay.data();
  args.first = in.u.data();
  args.y = y.data() + at;
  args.numerator = rows.state;
  args.denominator = shifted(rows.state, cols * 4);
  args.maximum = shifted(rows.state, 2 * cols * 4);
  args.query_start_loc = rows.query_start_loc;
  args.exports = rows.exports;
  args.rows = rows.rows;
  args.cols = cols;
  f(args, pool);
}

int64_t state_elements(Wkv4Function, const Problem& p) { return 3 * p.width(); }
int64_t state_elements(Wkv6Function, const Problem& p) { return p.width() * p.dim; }

// Denominators are sums of weights: above 0.
void fill(Wkv4Function, StatePool& states, int64_t slot, const Problem& p) {
  states.fill(slot, static_cast<uint64_t>(slot));
  for (int64_t i = p.width(); i < 2 * p.width(); ++i) states.set(slot, i, 1.5f + states.get(slot, i));
}
void fill(Wkv6Function, StatePool& states, int64_t slot, const Problem&) {
  states.fill(slot, static_cast<uint64_t>(slot));
}
int64_t state_elements(Wkv7Function, const Problem& p) { return p.width() * p.dim; }
void fill(Wkv7Function, StatePool& states, int64_t slot, const Problem&) {
  states.fill(slot, static_cast<uint64_t>(slot));
}

template <typename Function>
std::vector<OpOutput> run(Function f, const Problem& p, DType dtype, SlotRows rows, bool update, ThreadPool& pool) {
  const Inputs in(p, rows.tokens());
  StatePool states(rows.slots, state_elements(f, p), dtype);
  for (int64_t slot : rows.filled) fill(f, states, slot, p);
  std::vector<float> y(in.r.size(), 7.0f);
  call(f, in,
       {states.slots(rows.src.data(), rows.dst.data(), rows.has_initial_state.data()),
        update ? nullptr : rows.query_start_loc.data(), rows.rows()},
       y, pool);
  return {{"y", y}, {"state", states.all()}};
}

template <typename Function>
void candidates_agree(const Operation<Function>& operation, const Tolerance& tolerance, const Problem& p,
                      DType dtype = DType::kFloat32) {
  ThreadPool pool(2);
  SCOPED_TRACE(testing::Message() << p.heads << " heads of " << p.dim);
  for (bool update : {false, true}) {
    const SlotRows rows = update ? SlotRows::decode() : SlotRows::prefill();
    expect_candidates_agree(operation, with_state_rounding(tolerance, dtype),
                            [&](Function f) { return run(f, p, dtype, rows, update, pool); });
  }
}

constexpr int64_t kDims[] = {1, 7, 16, 20, 32, 44, 64, 72};

TEST(Wkv, Wkv4CandidatesAgreeOnEveryKindOfRow) {
  for (int64_t dim : kDims) candidates_agree(wkv4(), kWkv4Tolerance, {2, dim});
}

TEST(Wkv, Wkv6CandidatesAgreeOnEveryKindOfRow) {
  for (int64_t dim : kDims) candidates_agree(wkv6(), kWkv6Tolerance, {3, dim, dim % 3 == 0});
  candidates_agree(wkv6(), kWkv6Tolerance, {2, 36}, DType::kBFloat16);
  candidates_agree(wkv6(), kWkv6Tolerance, {2, 64}, DType::kFloat16);
}

TEST(Wkv, Wkv7CandidatesAgreeOnEveryKindOfRow) {
  for (int64_t dim : kDims) candidates_agree(wkv7(), kWkv7Tolerance, {3, dim});
  candidates_agree(wkv7(), kWkv7Tolerance, {2, 36}, DType::kBFloat16);
  candidates_agree(wkv7(), kWkv7Tolerance, {2, 64}, DType::kFloat16);
}

TEST(Wkv, MainPathIsVectorised) {
  expect_vectorised(wkv4());
  expect_vectorised(wkv6());
  expect_vectorised(wkv7());
}

template <typename Function>
std::vector<float> in_pieces(const Operation<Function>& operation, const Inputs& in, int64_t tokens, int64_t piece,
                             bool update, ThreadPool& pool) {
  const Function f = operation.selected().function;
  const int32_t slot = 1;
  StatePool states(2, state_elements(f, in.problem), DType::kFloat32);
  std::vector<float> y(in.r.size());
  for (int64_t t = 0; t < tokens; t += piece) {
    const uint8_t initial = t > 0;
    const int32_t loc[2] = {0, static_cast<int32_t>(std::min(piece, tokens - t))};
    call(f, in, {states.slots(&slot, &slot, &initial), update ? nullptr : loc, 1, t}, y, pool);
  }
  const std::vector<float> state = states.slot(1);
  y.insert(y.end(), state.begin(), state.end());
  return y;
}

template <typename Function>
void cuts_change_nothing(const Operation<Function>& operation) {
  ThreadPool pool(2);
  const Inputs in({2, 40}, 90);
  const std::vector<float> whole = in_pieces(operation, in, 90, 90, false, pool);
  for (float value : whole) ASSERT_TRUE(std::isfinite(value));
  for (int64_t piece : {1, 2, 3, 7, 64})
    EXPECT_EQ(in_pieces(operation, in, 90, piece, false, pool), whole) << "pieces of " << piece;
  EXPECT_EQ(in_pieces(operation, in, 90, 1, true, pool), whole) << "steps of one token";
}

TEST(Wkv, CutsOfAPromptGiveTheSameBits) {
  cuts_change_nothing(wkv4());
  cuts_change_nothing(wkv6());
  cuts_change_nothing(wkv7());
}

template <typename Function>
void exports_are_ends_of_shorter_rows(const Operation<Function>& operation, DType dtype = DType::kFloat32) {
  ThreadPool pool(2);
  const Inputs in({2, 40}, 90);
  const std::vector<int32_t> slot = {1, 2};
  const std::vector<uint8_t> initial = {1, 0};
  for_tiers(operation, [&](Function f) {
    expect_exports_are_ends_of_shorter_rows(
        [&](const std::vector<int32_t>& loc, const StateExports& exports, std::vector<float>& y) {
          StatePool states(7, state_elements(f, in.problem), dtype);
          fill(f, states, 1, in.problem);
          y.assign(in.r.size(), 0.0f);
          call(f, in, {states.slots(slot.data(), slot.data(), initial.data()), loc.data(), 2, 0, exports}, y, pool);
          return states;
        });
  });
}

TEST(Wkv, StatesInsideRowsAreThoseOfShorterRows) {
  exports_are_ends_of_shorter_rows(wkv4());
  exports_are_ends_of_shorter_rows(wkv6());
  exports_are_ends_of_shorter_rows(wkv6(), DType::kBFloat16);
  exports_are_ends_of_shorter_rows(wkv7());
  exports_are_ends_of_shorter_rows(wkv7(), DType::kFloat16);
}

TEST(Wkv, Wkv4BearsExponentsThatFloat32CannotRaise) {
  ThreadPool pool(1);
  Inputs in({1, 16}, 50);
  for (size_t i = 0; i < in.k.size(); ++i) in.k[i] *= 300.0f;
  for (float value : in_pieces(wkv4(), in, 50, 50, false, pool)) EXPECT_TRUE(std::isfinite(value));
  expect_candidates_agree(wkv4(), kWkv4Tolerance, [&](Wkv4Function f) {
    const int32_t slot = 1, loc[2] = {0, 50};
    const uint8_t initial = 0;
    StatePool states(2, state_elements(f, in.problem), DType::kFloat32);
    std::vector<float> y(in.r.size());
    call(f, in, {states.slots(&slot, &slot, &initial), loc, 1}, y, pool);
    return std::vector<OpOutput>{{"y", y}};
  });
}

}  // namespace
}  // namespace coluber
