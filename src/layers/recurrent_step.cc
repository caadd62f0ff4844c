// SPDX-License-Identifier: Apache-2.0
#include "layers/recurrent_step.h"

#include "kernels/wkv/time_mix.h"

namespace coluber {

RecurrentStep::RecurrentStep(const MambaBase& layer, const ForwardBatch& batch,
                             std::initializer_list<int64_t> state_elements)
    : layer_(layer), batch_(batch), metadata_(batch.metadata<RecurrentAttentionMetadata>(layer)) {
  check_step(layer, state_elements, metadata_, batch.num_tokens());
}

StateSlots RecurrentStep::slots(const RecurrentRows& rows, size_t state) const {
  const TensorView& view = layer_.kv_cache()[state];
  StateSlots found =
      rows.query_start_loc == nullptr ? decode_slots(batch_, metadata_, view) : prefill_slots(batch_, metadata_, view);
  found.by_token = batch_.deterministic;
  return found;
}

StateExports RecurrentStep::exports(const RecurrentRows& rows) const {
  return rows.query_start_loc == nullptr ? StateExports{} : prefill_exports(batch_, metadata_.exports);
}

void RecurrentStep::zero_padding(float* values, int64_t width) const {
  coluber::zero_padding(batch_, metadata_.num_decode_tokens + metadata_.num_prefill_tokens, values, width);
}

void RecurrentStep::token_shift(const float* x, int64_t cols, size_t state, float* delta) const {
  zero_padding(delta, cols);
  export_windows(batch_, metadata_, layer_.kv_cache()[state], x, cols, 1);
  each([&](const RecurrentRows& rows) {
    TokenShiftArgs args;
    args.x = x + rows.first_token * cols;
    args.delta = delta + rows.first_token * cols;
    args.state = slots(rows, state);
    args.query_start_loc = rows.query_start_loc;
    args.rows = rows.rows;
    args.cols = cols;
    coluber::token_shift()(args, batch_);
  });
}

}  // namespace coluber
