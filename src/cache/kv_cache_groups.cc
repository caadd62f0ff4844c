// SPDX-License-Identifier: Apache-2.0
#include "cache/kv_cache_groups.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/log.h"
#include "cache/arithmetic.h"

namespace coluber {

int64_t page_size_bytes(const KVCacheSpec& spec) {
  return std::visit([](const auto& each) { return each.page_size_bytes(); }, spec);
}

bool is_uniform_mamba_group(std::span<const KVCacheSpec> specs) {
  const MambaSpec* first = nullptr;
  for (const KVCacheSpec& spec : specs) {
    const auto* mamba = std::get_if<MambaSpec>(&spec);
    if (mamba == nullptr) return false;
    if (first == nullptr) first = mamba;
    if (mamba->num_speculative_blocks != first->num_speculative_blocks ||
        mamba->num_prefill_checkpoint_blocks != first->num_prefill_checkpoint_blocks ||
        mamba->prefill_checkpoint_alignment != first->prefill_checkpoint_alignment ||
        mamba->page_size_bytes() != first->page_size_bytes() || mamba->tp_replicated != first->tp_replicated)
      return false;
  }
  return first != nullptr;
}

KVCacheSpec merge_specs(std::span<const KVCacheSpec> specs) {
  if (specs.empty()) throw make_error(ErrorCode::kInvalidConfig, "no specs to merge: a group needs at least one layer");
  for (size_t i = 1; i < specs.size(); ++i) {
    if (specs[i] != specs[0])
      throw make_error(ErrorCode::kInvalidConfig,
                       "spec {} of a group differs from the first; layers of a group need equal specs", i);
  }
  return specs[0];
}

namespace {

struct Bucket {
  KVCacheSpec spec;
  std::vector<std::string> names;
};

std::vector<Bucket> bucket_by_spec(std::span<const NamedSpec> layers) {
  std::vector<Bucket> buckets;
  for (const NamedSpec& layer : layers) {
    const auto found =
        std::find_if(buckets.begin(), buckets.end(), [&](const Bucket& bucket) { return bucket.spec == layer.spec; });
    if (found != buckets.end())
      found->names.push_back(layer.layer_name);
    else
      buckets.push_back({layer.spec, {layer.layer_name}});
  }
  return buckets;
}

int64_t choose_group_size(const std::vector<Bucket>& buckets, std::optional<int64_t> attn_group_size) {
  if (attn_group_size) {
    if (*attn_group_size < 1)
      throw make_error(ErrorCode::kInvalidConfig, "attn_group_size is {}, expected at least 1", *attn_group_size);
    return *attn_group_size;
  }
  const auto fewer = [](const Bucket& a, const Bucket& b) { return a.names.size() < b.names.size(); };
  const auto [fewest, most] = std::minmax_element(buckets.begin(), buckets.end(), fewer);
  const auto m = static_cast<int64_t>(fewest->names.size());
  const auto largest = static_cast<int64_t>(most->names.size());
  // Kinds of nearly equal count share one padded group size; otherwise the rarer kind sets it.
  return 2 * largest < 3 * m ? largest : m;
}

void require_equal_pages(const std::vector<KVCacheGroup>& groups) {
  for (const KVCacheGroup& group : groups) {
    if (page_size_bytes(group.spec) != page_size_bytes(groups[0].spec))
      throw make_error(ErrorCode::kInvalidConfig,
                       "the page of layer '{}' has {} bytes, that of '{}' {}; pages of one pool must be equal: unify "
                       "the block sizes first",
                       group.layer_names[0], page_size_bytes(group.spec), groups[0].layer_names[0],
                       page_size_bytes(groups[0].spec));
  }
}

}  // namespace

std::vector<KVCacheGroup> group_kv_cache_specs(std::span<const NamedSpec> layers,
                                               std::optional<int64_t> attn_group_size) {
  std::vector<KVCacheGroup> groups;
  if (layers.empty()) return groups;
  const std::vector<Bucket> buckets = bucket_by_spec(layers);
  const int64_t group_size = choose_group_size(buckets, attn_group_size);
  for (const Bucket& bucket : buckets) {
    const auto count = static_cast<size_t>(ceil_div(static_cast<int64_t>(bucket.names.size()), group_size));
    for (size_t first = 0; first < count; ++first) {
      KVCacheGroup group{bucket.spec, {}};
      // Every count-th layer, so that a pipeline stage, which owns neighbours, gets a share of every group.
      for (size_t i = first; i < bucket.names.size(); i += count) group.layer_names.push_back(bucket.names[i]);
      groups.push_back(std::move(group));
    }
  }
  require_equal_pages(groups);
  return groups;
}

UnifiedPageSize unify_page_size(const UnifyPageSizeInput& in) {
  if (in.attention_bytes_per_token < 1 || in.mamba_page_bytes < 0 || in.kernel_block_multiple < 1 ||
      in.block_size < 1 || in.chunk_size < 1 || in.user_mamba_block_size.value_or(1) < 1 ||
      in.prefill_checkpoint_alignment.value_or(1) < 1)
    throw make_error(ErrorCode::kInvalidConfig,
                     "unifying pages: {} attention bytes a token, state page of {} bytes, kernel multiple {}, block "
                     "size {}, chunk size {}, "
                     "mamba block size {}, alignment {}; expected sizes of at least 1",
                     in.attention_bytes_per_token, in.mamba_page_bytes, in.kernel_block_multiple, in.block_size,
                     in.chunk_size, in.user_mamba_block_size.value_or(1), in.prefill_checkpoint_alignment.value_or(1));
  UnifiedPageSize out;
  out.attention_block_size = in.block_size;
  out.mamba_block_size = in.user_mamba_block_size;
  out.page_size_bytes = checked_mul(in.block_size, in.attention_bytes_per_token);
  if (in.mamba_page_bytes == 0) return out;

  int64_t granularity = std::max(in.kernel_block_multiple, in.block_size);
  if (in.mamba_cache_mode == MambaCacheMode::kAll) {
    const int64_t base =
        in.user_mamba_block_size ? checked_lcm(*in.user_mamba_block_size, in.chunk_size) : in.chunk_size;
    granularity = checked_lcm(base, granularity);
  } else if (in.mamba_cache_mode == MambaCacheMode::kAlign && in.prefill_checkpoint_alignment) {
    granularity = checked_lcm(granularity, *in.prefill_checkpoint_alignment);
  }
  const int64_t tokens = ceil_div(in.mamba_page_bytes, in.attention_bytes_per_token);
  out.attention_block_size = std::max(in.block_size, round_up(tokens, granularity));
  if (in.mamba_cache_mode != MambaCacheMode::kNone) out.mamba_block_size = out.attention_block_size;
  out.page_size_bytes = checked_mul(out.attention_block_size, in.attention_bytes_per_token);
  if (out.page_size_bytes != in.mamba_page_bytes) {
    out.mamba_page_size_padded = out.page_size_bytes;
    log_info("state pages of {} bytes are padded to {} ({:.1f} % more) to match attention pages of {} tokens",
             in.mamba_page_bytes, out.page_size_bytes,
             100.0 * static_cast<double>(out.page_size_bytes - in.mamba_page_bytes) /
                 static_cast<double>(in.mamba_page_bytes),
             out.attention_block_size);
  }
  return out;
}

BlockSizes resolve_block_sizes(std::span<const GroupBlockSize> groups, const BlockSizeOptions& options) {
  const int64_t dcp = options.decode_context_parallel_size;
  if (groups.empty() || dcp < 1)
    throw make_error(ErrorCode::kInvalidConfig,
                     "block sizes of {} groups with decode_context_parallel_size {}, expected both to be at least 1",
                     groups.size(), dcp);
  int64_t scheduler = 1;
  int64_t common_divisor = 0;
  bool all_align = true;
  std::vector<int64_t> sizes;
  for (const GroupBlockSize& group : groups) {
    if (group.block_size < 1)
      throw make_error(ErrorCode::kInvalidConfig, "the block size of a group is {}, expected at least 1",
                       group.block_size);
    // Each rank keeps whole states, but only its share of the attention pages.
    const bool sharded = !group.is_mamba || groups.size() == 1;
    sizes.push_back(sharded ? checked_mul(group.block_size, dcp) : group.block_size);
    scheduler = checked_lcm(scheduler, sizes.back());
    common_divisor = std::gcd(common_divisor, sizes.back());
    all_align &= !group.is_mamba || group.mamba_cache_mode == MambaCacheMode::kAlign;
  }
  if (groups.size() == 1) return {scheduler, scheduler};
  if ((!options.enable_prefix_caching && !options.has_kv_connector) || !all_align) return {scheduler, scheduler};
  const int64_t hash = options.prefix_match_unit.value_or(common_divisor);
  for (const int64_t size : sizes) {
    if (hash < 1 || size % hash != 0)
      throw make_error(
          ErrorCode::kInvalidConfig,
          "prefix_match_unit is {}, which does not divide the block size {} of a group; choose a divisor of {}", hash,
          size, common_divisor);
  }
  return {scheduler, hash};
}

int64_t resolve_mamba_chunk_size(std::optional<int64_t> mamba_chunk_size, std::optional<int64_t> chunk_size,
                                 bool has_linear_conv_kernel_dim) {
  // Gated delta rules are chunked by 64; Mamba-1 has no chunk and takes the largest grid.
  const int64_t fallback = has_linear_conv_kernel_dim ? 64 : 2048;
  const int64_t result = mamba_chunk_size.value_or(chunk_size.value_or(fallback));
  if (result < 1)
    throw make_error(ErrorCode::kInvalidConfig, "the chunk size of the scan is {}, expected at least 1", result);
  return result;
}

void resolve_mamba_cache_mode(CacheConfig& cache, const CacheModeFacts& facts) {
  if (!cache.enable_prefix_caching) {
    cache.mamba_cache_mode = MambaCacheMode::kNone;
    if (!cache.mamba_block_size) cache.mamba_block_size = facts.max_model_len;
    return;
  }
  if (cache.mamba_cache_mode == MambaCacheMode::kNone) cache.mamba_cache_mode = MambaCacheMode::kAlign;
  if (cache.mamba_cache_mode == MambaCacheMode::kAll && !facts.supports_all_mode) {
    log_warn("mamba_cache_mode all is not supported by this model; align is used");
    cache.mamba_cache_mode = MambaCacheMode::kAlign;
  }
  if (cache.mamba_cache_mode == MambaCacheMode::kAlign && !facts.chunked_prefill)
    throw make_error(
        ErrorCode::kInvalidConfig,
        "mamba_cache_mode align needs chunked prefill, which is off; turn it on or turn prefix caching off");
  if (!cache.mamba_block_size) cache.mamba_block_size = cache.block_size;
}

void validate_block_size(int64_t block_size, MambaCacheMode mode, const BlockSizeLimits& limits) {
  if (mode != MambaCacheMode::kAlign) return;
  if (block_size > limits.max_num_batched_tokens)
    throw make_error(
        ErrorCode::kInvalidConfig,
        "align mode: the block size {} is larger than max_num_batched_tokens {}; raise the budget or shrink the block",
        block_size, limits.max_num_batched_tokens);
  if (limits.long_prefill_token_threshold > 0 && block_size > limits.long_prefill_token_threshold)
    throw make_error(ErrorCode::kInvalidConfig,
                     "align mode: the block size {} is larger than long_prefill_token_threshold {}; raise the "
                     "threshold or set it to 0",
                     block_size, limits.long_prefill_token_threshold);
  if (limits.disable_chunked_mm_input)
    throw make_error(ErrorCode::kInvalidConfig,
                     "align mode: Chunked MM input is disabled; allow it (disable_chunked_mm_input = false)");
}

}  // namespace coluber
