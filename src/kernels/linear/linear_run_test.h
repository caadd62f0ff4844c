// SPDX-License-Identifier: Apache-2.0
//
// How the tests of linear attention and of the delta rule run an operation: over rows that meet every rule of
// state_slots.h, or over one prompt in pieces. `Inputs` makes the arguments: Inputs(problem, tokens), args(state,
// query_start_loc, rows, o, first token), state_elements(), width(). With `steps` the rows are of one token each and no
// starts are given.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/op_test.h"
#include "kernels/state_slots_test.h"

namespace coluber {

template <typename Inputs, typename Problem, typename Function>
std::vector<OpOutput> run_rows(const Problem& p, const SlotRows& rows, Function function, ThreadPool& pool,
                               bool steps = false) {
  const Inputs inputs(p, rows.tokens());
  StatePool states(rows.slots, inputs.state_elements(), p.dtype);
  for (int64_t slot : rows.filled) states.fill(slot, 10 + static_cast<uint64_t>(slot));
  std::vector<float> o(static_cast<size_t>(rows.tokens() * inputs.width()), 77.0f);
  Workspace workspace;
  function(inputs.args(states.slots(rows.src.data(), rows.dst.data(), rows.has_initial_state.data()),
                       steps ? nullptr : rows.query_start_loc.data(), rows.rows(), o, 0),
           pool, workspace);
  return {{"o", o}, {"state", states.all()}};
}

// The outputs of all tokens, then the state that they leave.
template <typename Inputs, typename Operation>
std::vector<float> run_pieces(const Inputs& inputs, int64_t tokens, int64_t piece, const Operation& operation,
                              ThreadPool& pool, bool steps = false) {
  const int32_t slot = 1;
  StatePool states(2, inputs.state_elements(), DType::kFloat32);
  std::vector<float> o(static_cast<size_t>(tokens * inputs.width()));
  Workspace workspace;
  for (int64_t t = 0; t < tokens; t += piece) {
    const uint8_t initial = t > 0;
    const int32_t loc[2] = {0, static_cast<int32_t>(std::min(piece, tokens - t))};
    operation(inputs.args(states.slots(&slot, &slot, &initial), steps ? nullptr : loc, 1, o, t), pool, workspace);
  }
  const std::vector<float> state = states.slot(1);
  o.insert(o.end(), state.begin(), state.end());
  return o;
}

// What expect_exports_are_ends_of_shorter_rows runs.
template <typename Inputs, typename Function>
StatePool run_two_rows(const Inputs& inputs, DType dtype, Function function, ThreadPool& pool,
                       const std::vector<int32_t>& loc, const StateExports& exports, std::vector<float>& o) {
  const std::vector<int32_t> slot = {1, 2};
  const std::vector<uint8_t> initial = {1, 0};
  StatePool states(7, inputs.state_elements(), dtype);
  states.fill(1, 9);
  o.assign(static_cast<size_t>(90 * inputs.width()), 0.0f);
  auto args = inputs.args(states.slots(slot.data(), slot.data(), initial.data()), loc.data(), 2, o, 0);
  args.exports = exports;
  Workspace workspace;
  function(args, pool, workspace);
  return states;
}

}  // namespace coluber
