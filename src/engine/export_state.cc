// SPDX-License-Identifier: Apache-2.0
#include "engine/export_state.h"

#include <cctype>

#include "base/error.h"
#include "layers/paged_kv_cache.h"

namespace coluber {

namespace {

// "model.layers.12.self_attn" -> "12"; a name without a number stands for itself.
std::string layer_number(const std::string& name) {
  size_t begin = 0;
  while (begin < name.size()) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const std::string part = name.substr(begin, end - begin);
    if (!part.empty() && part.find_first_not_of("0123456789") == std::string::npos) return part;
    begin = end + 1;
  }
  return name;
}

TensorView block_of(const TensorView& states, int32_t slot) {
  TensorView block;
  block.dtype = states.dtype;
  block.data = states.data + int64_t{slot} * states.strides[0] * dtype_size(states.dtype);
  block.shape = Shape(std::span(states.shape.begin() + 1, states.shape.end()));
  block.strides = Shape(std::span(states.strides.begin() + 1, states.strides.end()));
  return block;
}

// Elements of a block lie next to each other: brought to `host` where they are another device's.
void bring_to_host(Device& device, TensorView& block, std::vector<std::byte>& host) {
  if (device.is_host()) return;
  host.resize(static_cast<size_t>(block.size_bytes()));
  device.copy(host.data(), block.data, block.size_bytes());
  block.data = host.data();
}

// The cache keeps (W-1, channels); published states are (channels, W-1).
void transpose(ExportedState& state, int64_t rows, int64_t cols) {
  std::vector<float> turned(state.values.size());
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c)
      turned[static_cast<size_t>(c * rows + r)] = state.values[static_cast<size_t>(r * cols + c)];
  state.values = std::move(turned);
  state.shape = {1, cols, rows};
}

// The delta rules' contract keeps (heads, value dim, key dim); published states are (heads, key dim, value dim).
void turn_heads(ExportedState& state) {
  const int64_t heads = state.shape[1], values = state.shape[2], keys = state.shape[3];
  std::vector<float> turned(state.values.size());
  for (int64_t h = 0; h < heads; ++h)
    for (int64_t v = 0; v < values; ++v)
      for (int64_t k = 0; k < keys; ++k)
        turned[static_cast<size_t>((h * keys + k) * values + v)] =
            state.values[static_cast<size_t>((h * values + v) * keys + k)];
  state.values = std::move(turned);
  state.shape = {1, heads, keys, values};
}

void export_recurrent(const MambaBase& layer, Device& device, int32_t slot, std::vector<ExportedState>& out) {
  const std::vector<DeclaredState> states = layer.declared_states();
  for (size_t i = 0; i < states.size(); ++i) {
    if (states[i].is_scales) continue;  // in the values of the state that they scale
    const std::string& name = states[i].name;
    std::vector<std::byte> host;
    TensorView block = block_of(layer.kv_cache()[i], slot);
    bring_to_host(device, block, host);
    ExportedState state;
    state.name = "state." + layer_number(layer.layer_name()) + "." + name;
    state.values.resize(static_cast<size_t>(block.shape.count()));
    TensorView scales;
    if (states[i].scales >= 0) scales = block_of(layer.kv_cache()[static_cast<size_t>(states[i].scales)], slot);
    unpack_state(block, states[i].order, state.values.data(), states[i].scales >= 0 ? &scales : nullptr);
    state.shape = {1};
    state.shape.insert(state.shape.end(), block.shape.begin(), block.shape.end());
    if ((name == "conv" || name.starts_with("conv.")) && block.shape.rank() == 2)
      transpose(state, block.shape[0], block.shape[1]);
    if (layer.mamba_type() == MambaAttentionBackendEnum::kGdnAttn && name.starts_with("recurrent")) turn_heads(state);
    out.push_back(std::move(state));
  }
}

void export_attention(const KeyValueLayer& layer, const Sequence& sequence, std::vector<ExportedState>& out) {
  const std::string prefix = "state." + layer_number(layer.layer_name()) + ".";
  ExportedKeyValues exported = layer.export_key_values(sequence.pages, sequence.num_computed_tokens);
  auto add = [&](const char* name, const Shape& shape, std::vector<float>&& values) {
    ExportedState state{prefix + name, {1}, std::move(values)};
    state.shape.insert(state.shape.end(), shape.begin(), shape.end());
    out.push_back(std::move(state));
  };
  add("key", exported.key_shape, std::move(exported.keys));
  add("value", exported.value_shape, std::move(exported.values));
}

}  // namespace

std::vector<ExportedState> export_states(const EngineConfig& config, Device& device, const Sequence& sequence) {
  std::vector<ExportedState> out;
  for (const AttentionLayerBase* layer : config.layers) {
    if (const auto* recurrent = dynamic_cast<const MambaBase*>(layer))
      export_recurrent(*recurrent, device, sequence.state_slot, out);
    else if (const auto* attention = dynamic_cast<const KeyValueLayer*>(layer))
      export_attention(*attention, sequence, out);
  }
  return out;
}

}  // namespace coluber
