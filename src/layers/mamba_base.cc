// SPDX-License-Identifier: Apache-2.0
#include "coluber/mamba_base.h"

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

std::vector<StateLaneOrder> MambaBase::get_state_lane_order() const {
  return std::vector<StateLaneOrder>(get_state_shape().size(), StateLaneOrder::kContract);
}

std::vector<std::string> MambaBase::get_state_names() const {
  const size_t count = get_state_shape().size();
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
  kv_cache_ = bind_state_views(page, get_state_shape(), get_state_dtype(), offsets);
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
