// SPDX-License-Identifier: Apache-2.0
#include "layers/linear_attention_step.h"

#include "base/error.h"
#include "layers/recurrent_layer.h"
#include "layers/staged_state.h"
#include "tensor/cuda_step.h"

namespace coluber {
namespace {

void check_rows(const MambaBase& layer, const LinearAttentionMetadata& metadata, int64_t num_tokens) {
  const auto rows = static_cast<size_t>(metadata.num_decodes + metadata.num_prefills);
  COLUBER_CHECK(metadata.num_decode_tokens == metadata.num_decodes,
                "layer '{}': {} decode rows with {} tokens, expected one token a row", layer.layer_name(),
                metadata.num_decodes, metadata.num_decode_tokens);
  COLUBER_CHECK(metadata.query_start_loc.size() > rows && metadata.seq_lens.size() >= rows &&
                    metadata.state_indices_tensor.size() >= rows && metadata.has_initial_states.size() >= rows,
                "layer '{}': {} rows, {} starts, {} lengths, {} state indices", layer.layer_name(), rows,
                metadata.query_start_loc.size(), metadata.seq_lens.size(), metadata.state_indices_tensor.size());
  COLUBER_CHECK(metadata.query_start_loc[rows] <= num_tokens, "layer '{}': {} tokens of rows in a batch of {}",
                layer.layer_name(), metadata.query_start_loc[rows], num_tokens);
}

}  // namespace

LinearAttentionStep::LinearAttentionStep(const MambaBase& layer, const ForwardBatch& batch,
                                         std::initializer_list<int64_t> state_elements)
    : layer_(layer), batch_(batch), metadata_(batch.metadata<LinearAttentionMetadata>(layer)) {
  check_bound(layer, state_elements);
  check_rows(layer, metadata_, batch.num_tokens());
}

StateSlots LinearAttentionStep::slots(size_t state, int64_t first_row) const {
  return slots_in(layer_.kv_cache()[state], device_array(batch_, metadata_.state_indices_tensor) + first_row,
                  device_array(batch_, metadata_.has_initial_states) + first_row);
}

const int32_t* LinearAttentionStep::starts(int64_t first_row) const {
  return device_array(batch_, metadata_.query_start_loc) + first_row;
}

void LinearAttentionStep::zero_padding(float* rows, int64_t width) const {
  const auto count = static_cast<size_t>(metadata_.num_decodes + metadata_.num_prefills);
  coluber::zero_padding(batch_, metadata_.query_start_loc[count], rows, width);
}

// The starts are not rebased: every token stays where it is.
void LinearAttentionStep::attend(GatedLinearAttentionArgs args, size_t state) const {
  zero_padding(args.o, args.o_stride);
  if (metadata_.num_decodes > 0) {
    args.rows = metadata_.num_decodes;
    const StagedState staged(layer_, batch_, state, slots(state, 0), args.rows);
    args.state = staged.slots();
    gated_linear_attention_update()(args, batch_);
    staged.write_back();
  }
  if (metadata_.num_prefills > 0) {
    args.rows = metadata_.num_prefills;
    const StagedState staged(layer_, batch_, state, slots(state, metadata_.num_decodes), args.rows,
                             prefill_exports(batch_, metadata_.exports));
    args.state = staged.slots();
    args.exports = staged.exports();
    args.query_start_loc = starts(metadata_.num_decodes);
    gated_linear_attention()(args, batch_);
    staged.write_back();
  }
}

void LinearAttentionStep::convolve(CausalConv1dArgs args, size_t state) const {
  zero_padding(args.y, args.y_stride);
  const int64_t decodes = metadata_.num_decodes;
  convolve_rows(args, {decodes, slots(state, 0), metadata_.num_prefills, slots(state, decodes), 0, starts(decodes)},
                prefill_exports(batch_, metadata_.exports), batch_);
}

}  // namespace coluber
