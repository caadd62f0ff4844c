// SPDX-License-Identifier: Apache-2.0
#include "layers/staged_state.h"

#include "tensor/workspace.h"

namespace coluber {

StagedState::StagedState(const MambaBase& layer, const ForwardBatch& batch, size_t state, const StateSlots& slots,
                         int64_t rows, const StateExports& exports)
    : batch_(batch), slots_(slots), exports_(exports) {
  slots_.by_token = batch.deterministic;
  if (rows == 0 || layer.scales_of(state) < 0) return;
  codec_.rows = rows;
  num_exports_ = exports.starts != nullptr ? exports.starts[rows] : 0;
  export_slots_ = exports.slots;
  stage(layer, state, slots);
}

// Row r is slot r + 1 of the scratch and export i slot rows + 1 + i: slot 0 stays the one that stands for none.
void StagedState::stage(const MambaBase& layer, size_t state, const StateSlots& slots) {
  const TensorView& codes = layer.kv_cache()[state];
  const TensorView& scales = layer.kv_cache()[static_cast<size_t>(layer.scales_of(state))];
  const StateLaneOrder order = layer.bound_lane_order(state);
  codec_.codes = slots;
  codec_.scales = scales.data;
  int64_t elements = 1, scale_count = 1;
  for (int d = 1; d < codes.shape.rank(); ++d) elements *= codes.shape[d];
  for (int d = 1; d < scales.shape.rank(); ++d) scale_count *= scales.shape[d];
  codec_.lanes = order != StateLaneOrder::kContract;
  codec_.outer = order == StateLaneOrder::kHeadBlock16 ? codes.shape[1] : 1;
  codec_.channels = scale_count / codec_.outer;
  codec_.inner = elements / scale_count;
  const int64_t rows = codec_.rows, states = rows + num_exports_ + 1;
  auto* scratch = batch_.workspace->take<float>(states * elements);
  auto* ids = batch_.workspace->take<int32_t>(states);
  for (int64_t row = 0; row < rows; ++row) ids[row] = slots.is_null(row) ? 0 : static_cast<int32_t>(row + 1);
  for (int64_t i = 0; i < num_exports_; ++i) ids[rows + i] = static_cast<int32_t>(rows + 1 + i);
  codec_.values = scratch + elements;
  slots_ = {scratch,
            DType::kFloat32,
            elements * static_cast<int64_t>(sizeof(float)),
            ids,
            ids,
            1,
            slots.has_initial_state,
            slots_.by_token};
  if (num_exports_ > 0) exports_.slots = ids + rows;
  unpack_states()(codec_, *batch_.thread_pool);
}

void StagedState::write_back() const {
  if (codec_.rows == 0) return;
  pack_states()(codec_, *batch_.thread_pool);
  if (num_exports_ == 0) return;
  StateCodecArgs exported = codec_;
  exported.values += codec_.rows * codec_.elements();
  exported.rows = num_exports_;
  exported.codes.src = exported.codes.dst = export_slots_;
  exported.codes.index_stride = 1;
  exported.codes.has_initial_state = nullptr;
  pack_states()(exported, *batch_.thread_pool);
}

}  // namespace coluber
