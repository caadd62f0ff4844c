// SPDX-License-Identifier: Apache-2.0
//
// The shared-page layout of the contract: which layers share a block table, how attention pages and state pages are
// made equal, and the token granularities that follow. The engine's own layout needs no equal pages (cache_layout.h);
// these rules are for exchange with engines that do, and for prefix caching. Pure functions; throw
// Error(kInvalidConfig).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "coluber/config.h"
#include "coluber/kv_cache_spec.h"

namespace coluber {

// Equal in everything that lets specs share a pool of blocks: draft and checkpoint blocks, alignment, page bytes,
// replication.
bool is_uniform_mamba_group(std::span<const KVCacheSpec> specs);
// The spec of layers in one group; refuses specs that are not all equal, and none at all.
KVCacheSpec merge_specs(std::span<const KVCacheSpec> specs);
int64_t page_size_bytes(const KVCacheSpec& spec);

struct KVCacheGroup {
  KVCacheSpec spec;
  std::vector<std::string> layer_names;
};
struct NamedSpec {
  std::string layer_name;
  KVCacheSpec spec;
};
// Layers of equal specs, cut into groups of about equal size. Refuses groups whose pages differ.
std::vector<KVCacheGroup> group_kv_cache_specs(std::span<const NamedSpec> layers,
                                               std::optional<int64_t> attn_group_size = {});

struct UnifyPageSizeInput {
  int64_t attention_bytes_per_token = 0;  // of one layer
  int64_t mamba_page_bytes = 0;           // content; 0: the model has no recurrent layer
  int64_t kernel_block_multiple = 16;
  int64_t block_size = 16;
  int64_t chunk_size = 2048;
  MambaCacheMode mamba_cache_mode = MambaCacheMode::kNone;
  std::optional<int64_t> user_mamba_block_size;
  std::optional<int64_t> prefill_checkpoint_alignment;  // align mode: the block becomes a multiple of it
};
struct UnifiedPageSize {
  int64_t attention_block_size = 0;
  std::optional<int64_t> mamba_block_size;
  int64_t page_size_bytes = 0;
  std::optional<int64_t> mamba_page_size_padded;  // set where the page is larger than the content
};
UnifiedPageSize unify_page_size(const UnifyPageSizeInput& input);

struct GroupBlockSize {
  bool is_mamba = false;
  int64_t block_size = 0;
  MambaCacheMode mamba_cache_mode = MambaCacheMode::kNone;
};
struct BlockSizeOptions {
  int64_t decode_context_parallel_size = 1;
  bool enable_prefix_caching = false;
  bool has_kv_connector = false;
  std::optional<int64_t> prefix_match_unit;
};
struct BlockSizes {
  int64_t scheduler_block_size = 0;
  int64_t hash_block_size = 0;
};
BlockSizes resolve_block_sizes(std::span<const GroupBlockSize> groups, const BlockSizeOptions& options);

// The grid of the chunked scan by what a model's configuration says.
int64_t resolve_mamba_chunk_size(std::optional<int64_t> mamba_chunk_size, std::optional<int64_t> chunk_size,
                                 bool has_linear_conv_kernel_dim);

// Cache mode and state block size where they are left open: with prefix caching a state at step ends (or at every block
// where asked for and the model can), without it one state a request. Fills `cache`.
struct CacheModeFacts {
  bool supports_all_mode = false;
  bool chunked_prefill = true;
  int64_t max_model_len = 0;
};
void resolve_mamba_cache_mode(CacheConfig& cache, const CacheModeFacts& facts);

struct BlockSizeLimits {
  int64_t max_num_batched_tokens = 0;
  int64_t long_prefill_token_threshold = 0;  // 0: none
  bool disable_chunked_mm_input = false;
};
// What align mode asks of the block size; the other modes ask nothing.
void validate_block_size(int64_t block_size, MambaCacheMode mode, const BlockSizeLimits& limits);

}  // namespace coluber
