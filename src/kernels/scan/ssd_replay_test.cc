// SPDX-License-Identifier: Apache-2.0
#include "kernels/scan/ssd_replay.h"

#include <gtest/gtest.h>

#include "kernels/op_test.h"
#include "kernels/state_slots_test.h"

namespace coluber {
namespace {

struct Problem {
  int64_t heads, head_dim, groups, state_size, length = 16;
  DType dtype = DType::kFloat32;
  float dt_min = 0.0f, dt_max = std::numeric_limits<float>::infinity();
  bool skip = true;

  int64_t inner() const { return heads * head_dim; }
  int64_t ring_x() const { return inner() * length; }
  int64_t ring_dt() const { return heads * length; }
  int64_t ring_elements() const { return ring_x() + ring_dt() + groups * length * state_size; }
};

// Inputs of `tokens` tokens, states and rings. Both are NaN where nothing was written.
struct Bench {
  Problem p;
  int64_t width;
  std::vector<float> xbc, dt, bias, a, d, y;
  StatePool states, rings;

  Bench(const Problem& problem, int64_t tokens, int64_t slots)
      : p(problem),
        width(p.inner() + 2 * p.groups * p.state_size),
        xbc(random_floats(tokens * width, -1, 1, 1)),
        dt(random_floats(tokens * p.heads, -5, 2, 2)),
        bias(random_floats(p.heads, -1, 1, 3)),
        a(random_floats(p.heads, -2, -0.01f, 4)),
        d(random_floats(p.heads, -1, 1, 5)),
        y(static_cast<size_t>(tokens * p.inner()), 77.0f),
        states(slots, p.inner() * p.state_size, p.dtype),
        rings(slots, p.ring_elements(), DType::kFloat32) {}

  // Rows of one token each, from `token` on.
  SsdReplayArgs args(int64_t token, const int32_t* slots, const uint8_t* initial, const int32_t* counts,
                     const uint8_t* flush, int64_t rows) {
    SsdReplayArgs r;
    SsdArgs& s = r.ssd;
    s.x = xbc.data() + token * width;
    s.b = s.x + p.inner();
    s.c = s.b + p.groups * p.state_size;
    s.x_stride = s.b_stride = s.c_stride = width;
    s.dt = dt.data() + token * p.heads;
    s.dt_stride = p.heads;
    s.dt_bias = p.skip ? bias.data() : nullptr;
    s.dt_min = p.dt_min;
    s.dt_max = p.dt_max;
    s.a = a.data();
    s.d = p.skip ? d.data() : nullptr;
    s.y = y.data() + token * p.inner();
    s.y_stride = p.inner();
    s.state = states.slots(slots, slots, initial);
    s.rows = rows;
    s.num_heads = p.heads;
    s.head_dim = p.head_dim;
    s.num_groups = p.groups;
    s.state_size = p.state_size;
    const StateSlots ring = rings.slots(slots, slots, nullptr);
    r.ring.x = static_cast<float*>(ring.base);
    r.ring.dt = r.ring.x + p.ring_x();
    r.ring.b = r.ring.dt + p.ring_dt();
    r.ring.slot_stride_bytes = ring.slot_stride_bytes;
    r.ring.length = p.length;
    r.counts = counts;
    r.flush = flush;
    return r;
  }

  // Fills the first `count` inputs of a slot's ring.
  void fill_ring(int64_t slot, int64_t count) {
    const std::vector<float> values = random_floats(p.ring_elements(), -1, 1, 20 + static_cast<uint64_t>(slot));
    const auto fill = [&](int64_t first, int64_t parts, int64_t elements, bool positive) {
      for (int64_t part = 0; part < parts; ++part)
        for (int64_t i = 0; i < count * elements; ++i) {
          const int64_t at = first + part * p.length * elements + i;
          const float value = values[static_cast<size_t>(at)];
          rings.set(slot, at, positive ? std::abs(value) * 0.2f : value);
        }
    };
    fill(0, p.heads, p.head_dim, false);
    fill(p.ring_x(), p.heads, 1, true);
    fill(p.ring_x() + p.ring_dt(), p.groups, p.state_size, false);
  }
};

// Empty, half full and nearly full rings, flushed and not; a fresh row over NaN; rows without a slot.
struct Rows {
  std::vector<int32_t> slots{1, 0, 2, 3, -1, 4, 5, 6};
  std::vector<int32_t> counts;
  std::vector<uint8_t> flush{0, 0, 1, 0, 1, 1, 1, 0};
  std::vector<uint8_t> initial{1, 1, 1, 1, 1, 1, 0, 1};
  explicit Rows(int64_t length) {
    const auto last = static_cast<int32_t>(length - 1), half = static_cast<int32_t>(length / 2);
    counts = {0, 0, last, half, 3, 0, 0, last};
  }
  int64_t rows() const { return static_cast<int64_t>(slots.size()); }
};

std::vector<OpOutput> run(const Problem& p, SsdReplayFunction function, bool fold, ThreadPool& pool) {
  const Rows rows(p.length);
  Bench bench(p, rows.rows(), 7);
  for (size_t r = 0; r < rows.slots.size(); ++r) {
    if (rows.slots[r] <= 0 || rows.initial[r] == 0) continue;
    bench.states.fill(rows.slots[r], 10 + r);
    bench.fill_ring(rows.slots[r], rows.counts[r]);
  }
  function(bench.args(0, rows.slots.data(), rows.initial.data(), rows.counts.data(), fold ? nullptr : rows.flush.data(),
                      rows.rows()),
           pool);
  return {{"y", bench.y}, {"state", bench.states.all()}, {"ring", bench.rings.all()}};
}

TEST(SsdReplay, CandidatesAgreeOnEveryKindOfRow) {
  ThreadPool pool(2);
  for (const Problem& p :
       {Problem{6, 16, 2, 16}, Problem{4, 64, 1, 128}, Problem{3, 20, 3, 10, 5}, Problem{8, 7, 1, 33, 8},
        Problem{4, 40, 2, 24, 16, DType::kBFloat16}, Problem{2, 64, 1, 64, 64, DType::kFloat16},
        Problem{6, 24, 1, 32, 1, DType::kFloat32, 0.001f, 0.1f},
        Problem{2, 16, 1, 48, 17, DType::kFloat32, 0.0f, std::numeric_limits<float>::infinity(), false}}) {
    SCOPED_TRACE(::testing::Message() << p.heads << " heads of " << p.head_dim << ", " << p.groups << " groups, state "
                                      << p.state_size << ", ring of " << p.length);
    expect_candidates_agree(ssd_replay_step(), with_state_rounding(kSsdTolerance, p.dtype),
                            [&](SsdReplayFunction f) { return run(p, f, false, pool); });
    expect_candidates_agree(ssd_replay_fold(), with_state_rounding(kSsdTolerance, p.dtype),
                            [&](SsdReplayFunction f) { return run(p, f, true, pool); });
  }
}

TEST(SsdReplay, MainPathIsVectorised) {
  expect_vectorised(ssd_replay_step());
  expect_vectorised(ssd_replay_fold());
}

// The outputs of `tokens` steps of one sequence, then its state.
std::vector<float> decode(const Problem& p, int64_t tokens, bool replayed, ThreadPool& pool) {
  Bench bench(p, tokens, 2);
  const int32_t slot = 1;
  int32_t count = 0;
  Workspace workspace;
  for (int64_t t = 0; t < tokens; ++t) {
    const uint8_t initial = t > 0, flush = t == 0 || count == p.length - 1;
    const SsdReplayArgs args = bench.args(t, &slot, &initial, &count, &flush, 1);
    if (replayed) {
      ssd_replay_step()(args, pool);
      count = flush ? 0 : count + 1;
    } else {
      ssd_state_update()(args.ssd, pool, workspace);
    }
  }
  if (count > 0) {
    const uint8_t initial = 1;
    ssd_replay_fold()(bench.args(0, &slot, &initial, &count, nullptr, 1), pool);
  }
  std::vector<float> out = bench.y;
  const std::vector<float> state = bench.states.slot(slot);
  out.insert(out.end(), state.begin(), state.end());
  return out;
}

TEST(SsdReplay, GivesWhatStepsGiveAfterAnyNumberOfTokens) {
  ThreadPool pool(2);
  for (int64_t length : {1, 2, 7, 16, 64}) {
    for (int64_t tokens : {1, 2, 16, 17, 90}) {
      const Problem p{4, 24, 2, 40, length};
      expect_close(decode(p, tokens, true, pool), decode(p, tokens, false, pool), kSsdTolerance,
                   std::to_string(tokens) + " tokens, a ring of " + std::to_string(length));
    }
  }
}

TEST(SsdReplay, NoNumberOfThreadsChangesABit) {
  ThreadPool one(1), three(3);
  for (const Problem& p : {Problem{6, 16, 2, 40, 5}, Problem{4, 64, 1, 128}})
    EXPECT_EQ(decode(p, 40, true, one), decode(p, 40, true, three));
}

// A decay far below the smallest float, and next to 1, in one batch of heads.
TEST(SsdReplay, ExtremeDecaysStayFinite) {
  ThreadPool pool(1);
  for (const float a : {-1000.0f, -16.0f, -1e-4f, -1e-7f}) {
    const Problem p{2, 16, 1, 16, 16};
    Bench bench(p, 1, 2);
    bench.a.assign(2, a);
    bench.states.fill(1, 3);
    bench.fill_ring(1, 15);
    const int32_t slot = 1, count = 15;
    const uint8_t initial = 1;
    for (const uint8_t flush : {uint8_t{0}, uint8_t{1}}) {
      ssd_replay_step()(bench.args(0, &slot, &initial, &count, &flush, 1), pool);
      for (const float value : bench.y) ASSERT_TRUE(std::isfinite(value)) << a;
    }
    for (const float value : bench.states.slot(1)) ASSERT_TRUE(std::isfinite(value)) << a;
  }
}

// What makes a state not finite is found in the state, once it is written.
TEST(SsdReplay, ANanInTheRingReachesTheState) {
  ThreadPool pool(1);
  const Problem p{2, 16, 1, 48, 16};
  for (const int64_t at :
       {int64_t{0}, p.ring_x(), p.ring_x() + p.ring_dt()}) {  // an x, a dt and a B of the oldest input
    Bench bench(p, 1, 2);
    bench.states.fill(1, 3);
    bench.fill_ring(1, 5);
    bench.rings.set(1, at, std::numeric_limits<float>::quiet_NaN());
    const int32_t slot = 1, count = 5;
    const uint8_t initial = 1;
    ssd_replay_fold()(bench.args(0, &slot, &initial, &count, nullptr, 1), pool);
    const std::vector<float> state = bench.states.slot(1);
    EXPECT_TRUE(std::any_of(state.begin(), state.end(), [](float value) { return std::isnan(value); })) << at;
  }
}

TEST(SsdReplay, OnlyTheRingIsWrittenWithoutAFlush) {
  ThreadPool pool(1);
  const Problem p{2, 16, 1, 16, 4};
  Bench bench(p, 1, 2);
  bench.states.fill(1, 3);
  bench.fill_ring(1, 2);
  const std::vector<float> state = bench.states.slot(1), ring = bench.rings.slot(1);
  const int32_t slot = 1, count = 2;
  const uint8_t initial = 1, flush = 0;
  ssd_replay_step()(bench.args(0, &slot, &initial, &count, &flush, 1), pool);
  EXPECT_EQ(bench.states.slot(1), state);
  int64_t written = 0;
  for (size_t i = 0; i < ring.size(); ++i) {
    const float now = bench.rings.slot(1)[i];
    if (std::isnan(ring[i]) && !std::isnan(now)) ++written;
    EXPECT_TRUE(std::isnan(ring[i]) || now == ring[i]) << i;
  }
  EXPECT_EQ(written, p.inner() + p.heads + p.groups * p.state_size);
}

}  // namespace
}  // namespace coluber
