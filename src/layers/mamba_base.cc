// SPDX-License-Identifier: Apache-2.0
#include "coluber/mamba_base.h"

#include <algorithm>
#include <string>

#include "base/error.h"
#include "cache/arithmetic.h"

namespace coluber {

void EngineConfig::register_layer(AttentionLayerBase& layer) {
  for (const AttentionLayerBase* other : layers) {
    if (other->layer_name() == layer.layer_name())
      throw make_error(ErrorCode::kInvalidConfig,
                       "two layers with a cache are named '{}'; every such layer needs a name of its own",
                       layer.layer_name());
  }
  layer.layer_index_ = static_cast<int>(layers.size());
  layers.push_back(&layer);
}

std::optional<int64_t> get_mamba_prefill_checkpoint_alignment(const EngineConfig& config) {
  int64_t result = 1;
  for (const AttentionLayerBase* layer : config.layers) {
    const auto* mamba = dynamic_cast<const MambaBase*>(layer);
    if (mamba == nullptr) continue;
    const std::optional<int64_t> alignment = mamba->get_prefill_checkpoint_alignment();
    if (!alignment) return std::nullopt;
    if (*alignment < 1)
      throw make_error(ErrorCode::kInvalidConfig,
                       "layer '{}' declares a prefill checkpoint alignment of {}, expected at least 1",
                       layer->layer_name(), *alignment);
    result = checked_lcm(result, *alignment);
  }
  return result;
}

void check_decode_context_parallel(const EngineConfig& config) {
  if (config.parallel.decode_context_parallel_size < 1)
    throw make_error(ErrorCode::kInvalidConfig, "decode_context_parallel_size is {}, expected at least 1",
                     config.parallel.decode_context_parallel_size);
  if (config.parallel.decode_context_parallel_size == 1) return;
  std::string names;
  for (const AttentionLayerBase* layer : config.layers) {
    if (layer->supports_dcp()) continue;
    if (!names.empty()) names += ", ";
    names += layer->layer_name();
  }
  if (!names.empty())
    throw make_error(ErrorCode::kInvalidConfig,
                     "decode_context_parallel_size is {}, but these layers do not support decode-context parallelism: "
                     "{}; set it to 1",
                     config.parallel.decode_context_parallel_size, names);
}

std::vector<int> find_state_scales(const std::vector<Shape>& shapes, const std::vector<DType>& dtypes) {
  std::vector<int> scales(shapes.size(), -1);
  if (shapes.size() != dtypes.size()) return scales;
  const auto is_whole = [](DType dtype) { return dtype == DType::kInt16 || dtype == DType::kInt8; };
  const auto count = static_cast<size_t>(std::ranges::count_if(dtypes, is_whole));
  if (2 * count > shapes.size()) return scales;
  std::vector<int> found = scales;
  size_t next = shapes.size() - count;
  for (size_t i = 0; i < shapes.size() - count; ++i) {
    if (!is_whole(dtypes[i])) continue;
    const Shape &shape = shapes[i], &rows = shapes[next];
    const bool fits = shape.rank() > 1 ? rows == Shape(std::span(shape.begin(), shape.end() - 1))
                                       : rows.rank() == 1 && rows[0] > 0 && shape.count() % rows[0] == 0;
    if (dtypes[next] != DType::kFloat32 || !fits) return scales;
    found[i] = static_cast<int>(next++);
  }
  return next == shapes.size() ? found : scales;
}

namespace {

size_t count_scales(const std::vector<int>& scales) {
  return static_cast<size_t>(std::ranges::count_if(scales, [](int place) { return place >= 0; }));
}

// How the scales of a state are shared out: along the same axis. Of a state of one axis they lie along it too, fewer.
StateSplit split_of_scales(const std::string& layer, const StateSplit& split, const Shape& shape, const Shape& scales) {
  if (split.parts.empty()) return {};
  if (split.axis >= scales.rank())
    throw make_error(ErrorCode::kInvalidConfig,
                     "layer '{}': a state of shape {} in whole numbers is shared out along its rows (axis {}), whose "
                     "scales cannot be; share out another axis, or keep it in float32",
                     layer, shape.to_string(), split.axis);
  StateSplit result = split;
  const int64_t row = shape[split.axis] / scales[split.axis];
  for (StateSplit::Part& part : result.parts) part.size /= row;
  return result;
}

}  // namespace

std::vector<DeclaredState> MambaBase::declared_states() const {
  std::vector<Shape> shapes = get_state_shape();
  const std::vector<DType> dtypes = get_state_dtype();
  const std::vector<int> scales = find_state_scales(shapes, dtypes);
  const std::vector<Shape> all = shapes;
  shapes.resize(shapes.size() - count_scales(scales));
  const std::vector<std::string> names = get_state_names();
  const std::vector<StateLaneOrder> orders = get_state_lane_order();
  const std::vector<StateSplit> splits = get_state_split(shapes);
  COLUBER_CHECK(dtypes.size() == all.size() && names.size() == shapes.size() && orders.size() == shapes.size() &&
                    splits.size() == shapes.size(),
                "layer '{}': {} states with {} dtypes, {} names, {} orders and {} splits", layer_name(), all.size(),
                dtypes.size(), names.size(), orders.size(), splits.size());
  std::vector<DeclaredState> states(all.size());
  for (size_t i = 0; i < shapes.size(); ++i)
    states[i] = {names[i], all[i], dtypes[i], orders[i], splits[i], scales[i], false};
  for (size_t i = 0; i < shapes.size(); ++i) {
    if (scales[i] < 0) continue;
    const auto at = static_cast<size_t>(scales[i]);
    states[at] = {names[i] + ".scale",
                  all[at],
                  dtypes[at],
                  StateLaneOrder::kContract,
                  split_of_scales(layer_name(), splits[i], all[i], all[at]),
                  -1,
                  true};
  }
  return states;
}

std::vector<StateLaneOrder> MambaBase::get_state_lane_order() const {
  return std::vector<StateLaneOrder>(get_state_names().size(), StateLaneOrder::kContract);
}

std::vector<std::string> MambaBase::get_state_names() const {
  const std::vector<Shape> shapes = get_state_shape();
  const size_t count = shapes.size() - count_scales(find_state_scales(shapes, get_state_dtype()));
  const MambaAttentionBackendEnum type = mamba_type();
  std::vector<std::string> names;
  for (size_t i = 0; i < count; ++i) names.push_back(std::to_string(i));
  if (type == MambaAttentionBackendEnum::kCustom || count == 0) return names;
  if (type == MambaAttentionBackendEnum::kShortConv) {
    names.front() = "conv";
    return names;
  }
  names.back() = "recurrent";
  if (type != MambaAttentionBackendEnum::kLinear && count > 1) names.front() = "conv";
  return names;
}

KVCacheSpec MambaBase::get_kv_cache_spec(const EngineConfig& config) const {
  const CacheConfig& cache = config.cache;
  if (!cache.mamba_block_size)
    throw make_error(
        ErrorCode::kInvalidConfig,
        "layer '{}' needs cache.mamba_block_size, which is not set; in cache mode none it is max_model_len",
        layer_name());
  if (*cache.mamba_block_size < 1 || config.speculative.num_speculative_tokens < 0)
    throw make_error(
        ErrorCode::kInvalidConfig,
        "layer '{}': mamba_block_size is {} and num_speculative_tokens is {}, expected at least 1 and at least 0",
        layer_name(), *cache.mamba_block_size, config.speculative.num_speculative_tokens);
  MambaSpec spec;
  spec.block_size = *cache.mamba_block_size;
  spec.shapes = get_state_shape();
  spec.dtypes = get_state_dtype();
  spec.page_size_padded = cache.mamba_page_size_padded;
  spec.mamba_type = mamba_type();
  spec.mamba_cache_mode = cache.mamba_cache_mode;
  // Replay rolls back by not counting inputs, so it needs no state a draft.
  spec.num_speculative_blocks = cache.use_replayssm ? 0 : config.speculative.num_speculative_tokens;
  if (cache.mamba_cache_mode == MambaCacheMode::kAlign) {
    spec.prefill_checkpoint_alignment = get_prefill_checkpoint_alignment();
    spec.num_prefill_checkpoint_blocks = spec.prefill_checkpoint_alignment ? 1 : 0;
  }
  spec.tp_replicated = is_kv_cache_tp_replicated();
  return spec;
}

const AttentionBackend& MambaBase::get_attn_backend() const {
  return get_mamba_attn_backend(mamba_type(), custom_backend());
}

void MambaBase::bind_kv_cache(const TensorView& page) {
  bind_kv_cache(page, state_offsets(get_state_shape(), get_state_dtype(), 1));
}

void MambaBase::bind_kv_cache(const TensorView& page, const std::vector<int64_t>& offsets) {
  const std::vector<Shape> shapes = get_state_shape();
  const std::vector<DType> dtypes = get_state_dtype();
  kv_cache_ = bind_state_views(page, shapes, dtypes, offsets);
  scales_ = find_state_scales(shapes, dtypes);
  num_scales_ = count_scales(scales_);
  orders_ = get_state_lane_order();
}

void MambaBase::bind_replayssm_cache(const TensorView& page, const std::vector<int64_t>& offsets) {
  const std::vector<Shape> shapes = get_replayssm_shape();
  replayssm_cache_ = bind_state_views(page, shapes, std::vector<DType>(shapes.size(), DType::kFloat32), offsets);
}

void MambaBase::fold_replayssm(int32_t slot, int32_t count, ThreadPool&) {
  throw make_error(ErrorCode::kInternal, "layer '{}' has no ring, and {} inputs of slot {} are to be taken from it",
                   layer_name(), count, slot);
}

}  // namespace coluber
