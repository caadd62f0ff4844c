// SPDX-License-Identifier: Apache-2.0
#include "layers/recurrent_layer.h"

#include <algorithm>

#include "base/error.h"
#include "tensor/cuda_step.h"

namespace coluber {

std::string layer_name_of(const WeightLoader& loader) {
  std::string name = loader.full_name("");
  while (!name.empty() && name.back() == '.') name.pop_back();
  return name;
}

void expect_even_shares(const AttentionLayerBase& layer, const char* heads, int64_t count, int64_t ranks,
                        bool may_repeat) {
  if (ranks >= 1 && (count % ranks == 0 || (may_repeat && ranks % count == 0))) return;
  throw make_error(
      ErrorCode::kInvalidConfig,
      "layer '{}': {} {} do not split over a tensor-parallel size of {}; choose a size that divides them{}",
      layer.layer_name(), count, heads, ranks, may_repeat ? " or is a multiple of them" : "");
}

void SizeChecks::expect_positive(const char* what, int64_t value) {
  expect(value > 0, fmt::format("{}: expected a positive number, found {}", what, value));
}

void SizeChecks::expect_between(const char* what, int64_t value, int64_t low, int64_t high) {
  expect(value >= low && value <= high, fmt::format("{}: expected {} to {}, found {}", what, low, high, value));
}

void SizeChecks::finish(const char* kind, const WeightLoader& loader) const {
  if (problems_.empty()) return;
  throw make_error(ErrorCode::kInvalidConfig, "{} layer '{}': the model's configuration does not fit:{}", kind,
                   layer_name_of(loader), problems_);
}

FloatArray take_conv_weight(WeightLoader& loader, std::string_view name, int64_t channels, int64_t width) {
  return loader.place(read_conv_weight(loader, name, channels, width));
}

std::vector<float> read_conv_weight(WeightLoader& loader, std::string_view name, int64_t channels, int64_t width) {
  const std::vector<float> stored = loader.read_float(name, Shape{channels, 1, width});
  std::vector<float> weight(stored.size());
  for (int64_t c = 0; c < channels; ++c) {
    for (int64_t j = 0; j < width; ++j) {
      weight[static_cast<size_t>(j * channels + c)] = stored[static_cast<size_t>(c * width + j)];
    }
  }
  return weight;
}

StateSlots slots_in(const TensorView& state, const int32_t* indices, const uint8_t* has_initial_state) {
  StateSlots slots;
  slots.base = state.data;
  slots.dtype = state.dtype;
  slots.slot_stride_bytes = state.strides[0] * dtype_size(state.dtype);
  slots.src = slots.dst = indices;
  slots.has_initial_state = has_initial_state;
  return slots;
}

StateSlots decode_slots(const Execution& on, const BaseMambaAttentionMetadata& metadata, const TensorView& state) {
  StateSlots slots =
      slots_in(state, device_array(on, metadata.state_indices_tensor_d),
               metadata.has_initial_states_d.empty() ? nullptr : device_array(on, metadata.has_initial_states_d));
  slots.index_stride = metadata.state_indices_d_cols;
  return slots;
}

StateSlots prefill_slots(const Execution& on, const BaseMambaAttentionMetadata& metadata, const TensorView& state) {
  return slots_in(state, device_array(on, metadata.state_indices_tensor_p),
                  device_array(on, metadata.has_initial_states_p));
}

StateExports prefill_exports(const Execution& on, const PrefillExports& exports) {
  if (exports.starts.empty()) return {};
  return {device_array(on, exports.starts), device_array(on, exports.offsets), device_array(on, exports.blocks)};
}

void export_windows(const Execution& on, ConvWindowsArgs args, const StepRows& rows, const StateExports& exports) {
  if (exports.starts == nullptr) return;
  args.x += rows.first_prefill_token * args.x_stride;
  if (args.factor != nullptr) args.factor += rows.first_prefill_token * args.x_stride;
  args.state = rows.prefill_slots;
  args.query_start_loc = rows.prefill_starts;
  args.rows = rows.prefills;
  args.exports = exports;
  conv_windows()(args, on);
}

void export_windows(const Execution& on, const BaseMambaAttentionMetadata& metadata, const TensorView& state,
                    const float* x, int64_t channels, int64_t taps) {
  if (metadata.exports.starts.empty()) return;
  ConvWindowsArgs windows;
  windows.x = x;
  windows.x_stride = windows.channels = channels;
  windows.taps = taps;
  export_windows(on, windows, step_rows(on, metadata, state), prefill_exports(on, metadata.exports));
}

void convolve_rows(CausalConv1dArgs args, const StepRows& rows, const StateExports& exports, const Execution& on) {
  ConvWindowsArgs windows;
  windows.x = args.x;
  windows.x_stride = args.x_stride;
  windows.channels = args.channels;
  windows.taps = args.width - 1;
  export_windows(on, windows, rows, exports);
  if (rows.decodes > 0) {
    args.state = rows.decode_slots;
    args.rows = rows.decodes;
    causal_conv1d_update()(args, on);
  }
  if (rows.prefills > 0) {
    args.x += rows.first_prefill_token * args.x_stride;
    args.y += rows.first_prefill_token * args.y_stride;
    args.state = rows.prefill_slots;
    args.rows = rows.prefills;
    args.query_start_loc = rows.prefill_starts;
    causal_conv1d()(args, on);
  }
}

StepRows step_rows(const Execution& on, const BaseMambaAttentionMetadata& metadata, const TensorView& state) {
  StepRows rows;
  rows.decodes = rows.first_prefill_token = metadata.num_decodes;
  rows.prefills = metadata.num_prefills;
  if (rows.decodes > 0) rows.decode_slots = decode_slots(on, metadata, state);
  if (rows.prefills > 0) rows.prefill_slots = prefill_slots(on, metadata, state);
  rows.prefill_starts = device_array(on, metadata.query_start_loc_p);
  return rows;
}

void convolve_rows(CausalConv1dArgs args, const BaseMambaAttentionMetadata& metadata, const TensorView& state,
                   const Execution& on) {
  convolve_rows(args, step_rows(on, metadata, state), prefill_exports(on, metadata.exports), on);
}

void zero_padding(const ForwardBatch& batch, int64_t computed, float* values, int64_t width) {
  if (computed < batch.num_tokens())
    fill_zeros(batch, values + computed * width, (batch.num_tokens() - computed) * width);
}

void check_bound(const MambaBase& layer, std::span<const int64_t> state_elements) {
  COLUBER_CHECK(layer.kv_cache().size() == state_elements.size() + layer.num_bound_scales(),
                "layer '{}' has no cache: bind_kv_cache was not called", layer.layer_name());
  for (size_t i = 0; i < state_elements.size(); ++i) {
    const TensorView& state = layer.kv_cache()[i];
    int64_t elements = 1;
    for (int d = 1; d < state.shape.rank(); ++d) elements *= state.shape[d];
    COLUBER_CHECK(
        elements == state_elements[i],
        "layer '{}' runs whole on one rank without speculative slots: its state {} is {}, the kernels need {} "
        "elements a block",
        layer.layer_name(), i, state.shape.to_string(), state_elements[i]);
  }
}

void check_step(const MambaBase& layer, std::span<const int64_t> state_elements,
                const BaseMambaAttentionMetadata& metadata, int64_t num_tokens) {
  check_bound(layer, state_elements);
  const auto rows_p = static_cast<size_t>(metadata.num_prefills), rows_d = static_cast<size_t>(metadata.num_decodes);
  COLUBER_CHECK(metadata.num_decode_tokens == metadata.num_decodes && metadata.num_accepted_tokens.empty(),
                "layer '{}': {} decode rows with {} tokens, expected one token a row", layer.layer_name(),
                metadata.num_decodes, metadata.num_decode_tokens);
  COLUBER_CHECK(metadata.num_decode_tokens + metadata.num_prefill_tokens <= num_tokens,
                "layer '{}': {} decode and {} prefill tokens in a batch of {}", layer.layer_name(),
                metadata.num_decode_tokens, metadata.num_prefill_tokens, num_tokens);
  COLUBER_CHECK(metadata.state_indices_tensor_d.size() >= rows_d * static_cast<size_t>(metadata.state_indices_d_cols) &&
                    (metadata.has_initial_states_d.empty() || metadata.has_initial_states_d.size() >= rows_d),
                "layer '{}': {} decode rows, {} state indices", layer.layer_name(), metadata.num_decodes,
                metadata.state_indices_tensor_d.size());
  COLUBER_CHECK(
      rows_p == 0 || (metadata.state_indices_tensor_p.size() >= rows_p &&
                      metadata.has_initial_states_p.size() >= rows_p && metadata.query_start_loc_p.size() > rows_p &&
                      metadata.query_start_loc_p[rows_p] <= metadata.num_prefill_tokens),
      "layer '{}': {} prefill rows, {} state indices, {} starts", layer.layer_name(), metadata.num_prefills,
      metadata.state_indices_tensor_p.size(), metadata.query_start_loc_p.size());
}

}  // namespace coluber
