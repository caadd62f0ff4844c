// SPDX-License-Identifier: Apache-2.0
//
// The engine's configuration as the layers and builders see it: cache, parallel and speculative settings, and the
// layers registered by name. Filled once before layers are made; read-only afterwards but for the registration of
// layers.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "coluber/dtype.h"
#include "coluber/kv_cache_spec.h"

namespace coluber {

class AttentionLayerBase;

struct CacheConfig {
  int64_t block_size = 16;                  // tokens of an attention page
  std::optional<int64_t> mamba_block_size;  // tokens of a state block; the engine sets max_model_len in mode none
  std::optional<int64_t> mamba_page_size_padded;
  std::optional<DType> mamba_cache_dtype;      // conv states; unset: the activations' dtype
  std::optional<DType> mamba_ssm_cache_dtype;  // recurrent states; unset: float32
  DType kv_cache_dtype = DType::kFloat32;      // attention pages
  MambaCacheMode mamba_cache_mode = MambaCacheMode::kNone;
  bool enable_prefix_caching = false;
  // Where the engine keeps states for later requests. Its own pools keep them apart from the running state, so layers
  // and builders see `mamba_cache_mode` none.
  MambaCacheMode checkpoint_mode = MambaCacheMode::kNone;
  int64_t checkpoint_block_size = 256;              // tokens between checkpoints in modes all and align
  std::optional<int64_t> mamba_retention_interval;  // of those, one so many tokens stays; unset: all
  std::optional<int64_t> prefix_match_unit;         // finest prefix-cache hit; must divide every group's block size
  std::optional<int64_t> hash_block_size;           // tokens a prefix hash stands for; unset: the group's block size
  bool use_replayssm = false;
  int64_t replayssm_buffer_len = 16;  // inputs that replay keeps before it writes a full state
};

struct ParallelConfig {
  int64_t tensor_parallel_size = 1;
  int64_t tensor_parallel_rank = 0;
  int64_t decode_context_parallel_size = 1;
};

struct SpeculativeConfig {
  int64_t num_speculative_tokens = 0;
  bool drop_last_block = false;  // a drafter that reads hidden states makes the last cached block of a prompt unusable
};

struct SchedulerConfig {
  int64_t max_num_batched_tokens = 512;
  int64_t max_num_seqs = 8;
  int64_t long_prefill_token_threshold = 0;  // most tokens of one prompt in a step while others wait; 0: no limit
  bool by_priority = false;                  // Request::priority before arrival
};

struct EngineConfig {
  int64_t max_model_len = 4096;
  CacheConfig cache;
  ParallelConfig parallel;
  SpeculativeConfig speculative;
  SchedulerConfig scheduler;
  DType activation_dtype = DType::kFloat32;
  int64_t mamba_chunk_size = 2048;  // grid of the chunked scan; a model sets its own while it loads
  // Where positions turn otherwise in long sequences (LongRoPE): a sequence of more tokens than this is long, and is so
  // from its first token on. 0: no sequence is. A layer sets it while it loads.
  int64_t long_rope_beyond = 0;
  bool allow_bf16_products = false;  // --dtype auto: activations may be rounded to bf16 inside matrix products
  // No bit of a result depends on the batch, on how a prompt was cut, or on what came from the cache: operations whose
  // chunked form rounds by where chunks begin go token by token.
  bool deterministic = false;

  // Every layer that keeps a cache, by name ("model.layers.3.mixer"); does not own them. In layer order.
  std::vector<AttentionLayerBase*> layers;
  // Throws Error(kInvalidConfig) where the name is taken. Gives the layer its index.
  void register_layer(AttentionLayerBase& layer);
};

// Least common multiple of what the recurrent layers of the configuration declare; none if one of them cannot export a
// state in mid-prefill; 1 where there is no recurrent layer.
std::optional<int64_t> get_mamba_prefill_checkpoint_alignment(const EngineConfig& config);

// Throws Error(kInvalidConfig) naming every registered layer that cannot run under decode-context parallelism, where
// that is on.
void check_decode_context_parallel(const EngineConfig& config);

}  // namespace coluber
