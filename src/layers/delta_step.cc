// SPDX-License-Identifier: Apache-2.0
#include "layers/delta_step.h"

#include <cmath>

#include "base/error.h"
#include "layers/recurrent_layer.h"
#include "layers/staged_state.h"
#include "tensor/cuda_step.h"
#include "tensor/workspace.h"

namespace coluber {

FloatArray take_rates(WeightLoader& loader, const Shape& shape) {
  std::vector<float> rates = loader.read_float("A_log", shape);
  for (float& a : rates) a = static_cast<float>(std::exp(static_cast<double>(a)));
  return loader.place(std::move(rates));
}

DeltaStep::DeltaStep(const MambaBase& layer, const ForwardBatch& batch, int64_t conv_elements,
                     int64_t recurrent_elements)
    : layer_(layer), batch_(batch), metadata_(batch.metadata<GDNAttentionMetadata>(layer)) {
  check_bound(layer, {conv_elements, recurrent_elements});
  const GDNAttentionMetadata& m = metadata_;
  const auto decodes = static_cast<size_t>(m.num_decodes), prefills = static_cast<size_t>(m.num_prefills);
  COLUBER_CHECK(m.num_spec_decodes == 0 && m.num_decode_tokens == m.num_decodes,
                "layer '{}': {} rows with draft tokens, {} decode rows with {} tokens; expected one token a row",
                layer.layer_name(), m.num_spec_decodes, m.num_decodes, m.num_decode_tokens);
  COLUBER_CHECK(m.num_decode_tokens + m.num_prefill_tokens <= batch.num_tokens(),
                "layer '{}': {} decode and {} prefill tokens in a batch of {}", layer.layer_name(), m.num_decode_tokens,
                m.num_prefill_tokens, batch.num_tokens());
  COLUBER_CHECK(m.non_spec_state_indices_tensor.size() >= decodes && m.prefill_state_indices.size() >= prefills &&
                    m.prefill_has_initial_state.size() >= prefills &&
                    (prefills == 0 || (m.prefill_query_start_loc.size() > prefills &&
                                       m.prefill_query_start_loc[prefills] <= m.num_prefill_tokens)),
                "layer '{}': {} decode and {} prefill rows, {} and {} state indices", layer.layer_name(), m.num_decodes,
                m.num_prefills, m.non_spec_state_indices_tensor.size(), m.prefill_state_indices.size());
  COLUBER_CHECK(!m.checkpoint.any, "layer '{}': a checkpoint inside a prefill was asked for; end the chunk there",
                layer.layer_name());
}

DeltaStep::Rows DeltaStep::decodes() const {
  return {0, metadata_.num_decodes, nullptr, device_array(batch_, metadata_.non_spec_state_indices_tensor), nullptr};
}

DeltaStep::Rows DeltaStep::prefills() const {
  return {metadata_.num_decodes, metadata_.num_prefills, device_array(batch_, metadata_.prefill_query_start_loc),
          device_array(batch_, metadata_.prefill_state_indices),
          device_array(batch_, metadata_.prefill_has_initial_state)};
}

StateSlots DeltaStep::slots_of(const Rows& rows, size_t state) const {
  return slots_in(layer_.kv_cache()[state], rows.slots, rows.has_initial_state);
}

void DeltaStep::convolve(CausalConv1dArgs args) const {
  const Rows first = decodes(), then = prefills();
  convolve_rows(
      args, {first.count, slots_of(first, 0), then.count, slots_of(then, 0), then.first_token, then.query_start_loc},
      prefill_exports(batch_, metadata_.exports), batch_);
}

void DeltaStep::attend(DeltaRuleArgs args) const {
  const DeltaRuleArgs all = args;
  for (const Rows& rows : {decodes(), prefills()}) {
    if (rows.count == 0) continue;
    const int64_t first = rows.first_token;
    args.q = all.q + first * all.q_stride;
    args.k = all.k + first * all.k_stride;
    args.v = all.v + first * all.v_stride;
    if (all.gate != nullptr) args.gate = all.gate + first * all.gate_stride;
    if (all.beta != nullptr) args.beta = all.beta + first * all.beta_stride;
    args.y = all.y + first * all.y_stride;
    const WorkspaceScope scope(*batch_.workspace);
    const StagedState state(
        layer_, batch_, 1, slots_of(rows, 1), rows.count,
        rows.query_start_loc != nullptr ? prefill_exports(batch_, metadata_.exports) : StateExports{});
    args.state = state.slots();
    args.rows = rows.count;
    args.query_start_loc = rows.query_start_loc;
    args.exports = state.exports();
    check_delta_rule(args);
    delta_rule()(args, batch_);
    state.write_back();
  }
}

void DeltaStep::zero_padding(float* values, int64_t width) const {
  coluber::zero_padding(batch_, metadata_.num_decode_tokens + metadata_.num_prefill_tokens, values, width);
}

}  // namespace coluber
