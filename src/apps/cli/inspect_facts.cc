// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/inspect_facts.h"

#include <algorithm>
#include <cctype>

#include "attention/backend_names.h"
#include "coluber/mamba_base.h"

namespace coluber::cli {
namespace {

// The block that a layer belongs to: its name up to the first number ("model.layers.3" of "model.layers.3.conv").
std::string_view block_of(std::string_view name) {
  size_t at = 0;
  while (at < name.size()) {
    size_t end = name.find('.', at);
    if (end == std::string_view::npos) end = name.size();
    const std::string_view part = name.substr(at, end - at);
    if (!part.empty() && std::all_of(part.begin(), part.end(), [](unsigned char c) { return std::isdigit(c) != 0; })) {
      return name.substr(0, end);
    }
    at = end + 1;
  }
  return name;
}

std::string backend_name(const AttentionLayerBase& layer) {
  const MambaBase* recurrent = dynamic_cast<const MambaBase*>(&layer);
  if (recurrent != nullptr && recurrent->mamba_type() == MambaAttentionBackendEnum::kCustom &&
      !recurrent->custom_backend().empty()) {
    return std::string(recurrent->custom_backend());
  }
  const std::string_view class_name = layer.get_attn_backend().name();
  const BackendNames* names = find_backend_names(class_name);
  return std::string(names != nullptr ? names->backend : class_name);
}

LayerFacts layer_facts(const LayerInfo& layer, const EngineConfig& config) {
  LayerFacts facts;
  facts.name = layer.name;
  facts.kind = layer.kind;
  if (layer.cache == nullptr) return facts;
  facts.backend = backend_name(*layer.cache);
  facts.spec = layer.cache->get_kv_cache_spec(config);
  facts.page_size_bytes = std::visit([](const auto& spec) { return spec.page_size_bytes(); }, *facts.spec);
  if (const MambaBase* recurrent = dynamic_cast<const MambaBase*>(layer.cache)) {
    facts.mamba_type = mamba_type_name(recurrent->mamba_type());
    facts.state_shapes = recurrent->get_state_shape();
    facts.state_dtypes = recurrent->get_state_dtype();
    facts.prefill_checkpoint_alignment = recurrent->get_prefill_checkpoint_alignment();
  } else if (const FullAttentionSpec* spec = std::get_if<FullAttentionSpec>(&*facts.spec)) {
    const Shape plane{spec->block_size, spec->num_kv_heads, spec->head_size};  // keys, then values where they are apart
    facts.state_shapes.assign(static_cast<size_t>(spec->planes), plane);
    // Behind them, what a layer notes about each token to choose among them.
    const int64_t rows = spec->planes * spec->block_size * spec->num_kv_heads;
    const int64_t noted_bytes = facts.page_size_bytes - dtype_bytes(spec->dtype, rows * spec->stored_head_size());
    facts.state_dtypes.assign(facts.state_shapes.size(), spec->dtype);
    if (noted_bytes > 0) {
      facts.state_dtypes.push_back(spec->row_scales ? DType::kFloat32 : spec->dtype);
      facts.state_shapes.push_back(
          {spec->block_size, noted_bytes / dtype_bytes(facts.state_dtypes.back(), spec->block_size)});
    }
    if (!spec->row_scales) return facts;
    facts.state_shapes.push_back({spec->planes, spec->block_size, spec->num_kv_heads});  // behind each row
    facts.state_dtypes.push_back(DType::kFloat32);
  }
  return facts;
}

Json text_or_null(const std::string& text) { return text.empty() ? Json() : Json(text); }
Json number_or_null(const std::optional<int64_t>& number) { return number ? Json(*number) : Json(); }

Json layer_json(const LayerFacts& layer) {
  Json::Array shapes, dtypes;
  for (const Shape& shape : layer.state_shapes) shapes.emplace_back(Json::Array(shape.begin(), shape.end()));
  for (const DType dtype : layer.state_dtypes) dtypes.emplace_back(dtype_name(dtype));
  Json out;
  out.set("name", layer.name);
  out.set("kind", layer.kind);
  out.set("mamba_type", text_or_null(layer.mamba_type));
  out.set("backend", text_or_null(layer.backend));
  out.set("state_shapes", std::move(shapes));
  out.set("state_dtypes", std::move(dtypes));
  out.set("page_size_bytes", layer.page_size_bytes);
  out.set("prefill_checkpoint_alignment", number_or_null(layer.prefill_checkpoint_alignment));
  if (!layer.feed_forward.empty()) out.set("feed_forward", layer.feed_forward);
  return out;
}

}  // namespace

int64_t ModelFacts::cache_bytes(int64_t tokens) const {
  int64_t bytes = 0;
  for (const LayerFacts& layer : layers) {
    if (!layer.spec) continue;
    bytes += std::visit([tokens](const auto& spec) { return spec.max_memory_usage_bytes(tokens); }, *layer.spec);
  }
  return bytes;
}

ModelFacts gather_facts(const ModelInfo& info, const EngineConfig& config) {
  ModelFacts facts;
  facts.info = info;
  facts.max_model_len = config.max_model_len;
  facts.prefill_checkpoint_alignment = get_mamba_prefill_checkpoint_alignment(config);
  for (const LayerInfo& layer : info.layers) {
    // A feed-forward half is a note on the mixer of its block, not a layer beside it.
    if (layer.cache == nullptr && !facts.layers.empty() && !facts.layers.back().backend.empty() &&
        block_of(facts.layers.back().name) == block_of(layer.name)) {
      facts.layers.back().feed_forward = layer.kind;
      continue;
    }
    facts.layers.push_back(layer_facts(layer, config));
  }
  for (const LayerFacts& layer : facts.layers) {
    if (!layer.spec) continue;
    if (const MambaSpec* spec = std::get_if<MambaSpec>(&*layer.spec)) {
      facts.state_bytes_per_sequence += spec->max_memory_usage_bytes(config.max_model_len);
    } else {
      const FullAttentionSpec& attention = std::get<FullAttentionSpec>(*layer.spec);
      facts.kv_bytes_per_token += attention.page_size_bytes() / attention.block_size;
    }
  }
  return facts;
}

Json facts_json(const ModelFacts& facts) {
  Json::Array layers;
  for (const LayerFacts& layer : facts.layers) layers.push_back(layer_json(layer));
  Json by_dtype{Json::Object{}};
  for (const auto& [dtype, count] : facts.info.parameters_by_dtype) by_dtype.set(std::string(dtype_name(dtype)), count);
  Json::Array notes(facts.info.notes.begin(), facts.info.notes.end());
  Json out;
  out.set("architecture", facts.info.architecture);
  out.set("num_layers", facts.info.num_layers);
  out.set("parameters", facts.info.parameters);
  out.set("weight_bytes", facts.info.weight_bytes);
  out.set("state_bytes_per_sequence", facts.state_bytes_per_sequence);
  out.set("kv_bytes_per_token", facts.kv_bytes_per_token);
  out.set("prefill_checkpoint_alignment", number_or_null(facts.prefill_checkpoint_alignment));
  out.set("layers", std::move(layers));
  out.set("vocab_size", facts.info.vocab_size);
  out.set("hidden_size", facts.info.hidden_size);
  out.set("max_model_len", facts.max_model_len);
  out.set("parameters_by_dtype", std::move(by_dtype));
  out.set("notes", std::move(notes));
  return out;
}

}  // namespace coluber::cli
