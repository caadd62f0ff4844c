// SPDX-License-Identifier: Apache-2.0
#include "kernels/rg_lru/rg_lru.h"

#include <gtest/gtest.h>

#include "kernels/op_test.h"
#include "kernels/state_slots_test.h"

namespace coluber {
namespace {

struct Inputs {
  int64_t channels;
  std::vector<float> x, gates, decay;

  Inputs(int64_t channels, int64_t tokens)
      : channels(channels),
        x(random_floats(tokens * channels, -2, 2, 1)),
        gates(random_floats(tokens * 2 * channels, -9, 9, 2)),
        decay(static_cast<size_t>(channels)) {
    const std::vector<float> params = random_floats(channels, -12, 3, 3);
    prepare_rg_lru_decay(params.data(), channels, decay.data());
  }

  RgLruArgs args(const StateSlots& state, const int32_t* query_start_loc, int64_t rows, float* y) const {
    RgLruArgs args;
    args.x = x.data();
    args.x_stride = args.y_stride = channels;
    args.input_gate = gates.data();
    args.recurrent_gate = gates.data() + channels;
    args.gate_stride = 2 * channels;
    args.log_decay = decay.data();
    args.y = y;
    args.state = state;
    args.query_start_loc = query_start_loc;
    args.rows = rows;
    args.channels = channels;
    return args;
  }
};

SlotRows mixed_rows() {
  SlotRows rows;
  rows.add(1, true, false);
  rows.add(17, false, false);
  rows.add(40, true, true);
  rows.add_null(3, 0);
  rows.add(0, true, false);
  rows.add(1, false, true);
  rows.add_null(2, -1);
  return rows;
}

std::vector<OpOutput> run(const Inputs& inputs, const SlotRows& rows, DType dtype, RgLruFunction f, ThreadPool& pool,
                          const int32_t* query_start_loc) {
  StatePool states(rows.slots, inputs.channels, dtype);
  for (int64_t slot : rows.filled) states.fill(slot, static_cast<uint64_t>(slot));
  std::vector<float> y(inputs.x.size(), NAN);
  const StateSlots slots = states.slots(rows.src.data(), rows.dst.data(), rows.has_initial_state.data());
  f(inputs.args(slots, query_start_loc, rows.rows(), y.data()), pool);
  return {{"y", y}, {"states", states.all()}};
}

TEST(RgLru, CandidatesAgreeOverRowsWidthsAndTypes) {
  ThreadPool pool(3);
  const SlotRows rows = mixed_rows();
  for (int64_t channels : {1, 13, 64, 200}) {
    const Inputs inputs(channels, rows.tokens());
    for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      const Tolerance tolerance =
          dtype == DType::kFloat32 ? kRgLruTolerance : Tolerance{1e-6, dtype == DType::kBFloat16 ? 8e-3 : 1e-3, 1e-5};
      SCOPED_TRACE(std::to_string(channels) + " channels, " + std::string(dtype_name(dtype)));
      expect_candidates_agree(rg_lru(), tolerance, [&](RgLruFunction f) {
        return run(inputs, rows, dtype, f, pool, rows.query_start_loc.data());
      });
    }
  }
}

TEST(RgLru, StepsOfOneTokenAgreeAndStartSequences) {
  ThreadPool pool(2);
  SlotRows rows;
  rows.add(1, true, false);
  rows.add(1, false, false);
  rows.add_null(1, 0);
  rows.add(1, true, true);
  const Inputs inputs(72, rows.tokens());
  expect_candidates_agree(rg_lru_update(), kRgLruTolerance,
                          [&](RgLruFunction f) { return run(inputs, rows, DType::kFloat32, f, pool, nullptr); });
}

TEST(RgLru, ChunksAndStepsGiveTheBitsOfOnePass) {
  ThreadPool pool(2);
  const int64_t channels = 50;
  const int32_t tokens = 30;
  const Inputs inputs(channels, tokens);
  for (size_t i = 0; i < rg_lru().candidates().size(); ++i) {
    const auto& candidate = rg_lru().candidates()[i];
    const auto& step = rg_lru_update().candidates()[i];
    if (candidate.isa > active_isa() || candidate.isa == Isa::kRef) continue;
    const int32_t slot = 1;
    auto pass = [&](int32_t chunk) {
      StatePool states(2, channels, DType::kFloat32);
      std::vector<float> y(inputs.x.size());
      for (int32_t begin = 0; begin < tokens; begin += chunk) {
        const int32_t end = std::min(begin + chunk, tokens);
        const int32_t starts[2] = {begin, end};
        const uint8_t initial = begin > 0;
        RgLruArgs args = inputs.args(states.slots(&slot, &slot, &initial), starts, 1, y.data());
        if (chunk > 1) {
          candidate.function(args, pool);
          continue;
        }
        args.x += begin * channels;
        args.y += begin * channels;
        args.input_gate += begin * args.gate_stride;
        args.recurrent_gate += begin * args.gate_stride;
        step.function(args, pool);
      }
      std::vector<float> all = states.slot(1);
      all.insert(all.end(), y.begin(), y.end());
      return all;
    };
    const std::vector<float> whole = pass(tokens);
    for (int32_t chunk : {1, 7, 16}) EXPECT_EQ(pass(chunk), whole) << candidate.name << ", chunk " << chunk;
  }
}

TEST(RgLru, StatesInsideRowsAreThoseOfShorterRows) {
  ThreadPool pool(2);
  const int64_t channels = 50;
  const Inputs inputs(channels, 90);
  const std::vector<int32_t> slot = {1, 2};
  const std::vector<uint8_t> initial = {1, 0};
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16})
    for_tiers(rg_lru(), [&](RgLruFunction f) {
      expect_exports_are_ends_of_shorter_rows([&](const std::vector<int32_t>& loc, const StateExports& exports,
                                                  std::vector<float>& y) {
        StatePool states(7, channels, dtype);
        states.fill(1, 9);
        y.assign(static_cast<size_t>(90 * channels), 0.0f);
        RgLruArgs args = inputs.args(states.slots(slot.data(), slot.data(), initial.data()), loc.data(), 2, y.data());
        args.exports = exports;
        f(args, pool);
        return states;
      });
    });
}

// h = u at first, and with a decay of nearly 1 the input's factor is small and exact: sqrt(1 - a^2) without
// cancellation.
TEST(RgLru, ADecayNearOneKeepsItsDigits) {
  ThreadPool pool(1);
  const float log_decay = -1e-6f, gates[2] = {90.0f, 0.0f}, x[2] = {1.0f, 1.0f};
  const int32_t slot = 1, starts[2] = {0, 2};
  const uint8_t fresh = 0;
  for (const auto& candidate : rg_lru().candidates()) {
    if (candidate.isa > active_isa()) continue;
    StatePool states(2, 1, DType::kFloat32);
    float y[2];
    RgLruArgs args;
    args.x = x;
    args.x_stride = args.y_stride = 1;
    args.input_gate = gates;
    args.gate_stride = 0;
    args.recurrent_gate = gates + 1;
    args.log_decay = &log_decay;
    args.y = y;
    args.state = states.slots(&slot, &slot, &fresh);
    args.query_start_loc = starts;
    args.rows = 1;
    args.channels = 1;
    candidate.function(args, pool);
    EXPECT_FLOAT_EQ(y[0], 1.0f) << candidate.name;
    EXPECT_NEAR((y[1] - 1.0) / (std::sqrt(1e-6) - 5e-7), 1.0, 1e-4) << candidate.name;
  }
}

TEST(RgLru, RunsVectorised) {
  expect_vectorised(rg_lru());
  expect_vectorised(rg_lru_update());
}

}  // namespace
}  // namespace coluber
