// SPDX-License-Identifier: Apache-2.0
#include "layers/attention.h"

#include <algorithm>
#include <cmath>

#include "base/dtype.h"
#include "base/error.h"
#include "coluber/backend.h"
#include "tensor/workspace.h"

namespace coluber {
namespace {

std::string name_of(const WeightLoader& loader) {
  std::string name = loader.full_name("");
  while (!name.empty() && name.back() == '.') name.pop_back();
  return name;
}

AttentionConfig checked(AttentionConfig config, const WeightLoader& loader) {
  std::string problems;
  auto expect = [&](bool fine, const std::string& message) {
    if (!fine) problems += "\n  " + message;
  };
  expect(config.hidden_size > 0, fmt::format("hidden size: expected a positive number, found {}", config.hidden_size));
  expect(config.head_dim > 0, fmt::format("head dim: expected a positive number, found {}", config.head_dim));
  expect(config.num_kv_heads > 0 && config.num_heads > 0 &&
             config.num_heads % std::max<int64_t>(config.num_kv_heads, 1) == 0,
         fmt::format("attention heads: expected a positive multiple of the key-value heads, found {} and {}",
                     config.num_heads, config.num_kv_heads));
  const DType dtype = loader.config().cache.kv_cache_dtype;
  expect(dtype == DType::kFloat32 || dtype == DType::kBFloat16 || dtype == DType::kFloat16,
         fmt::format("key-value cache dtype: expected float32, bfloat16 or float16, found {}", dtype_name(dtype)));
  expect(loader.config().cache.block_size > 0,
         fmt::format("cache block size: expected a positive number, found {}", loader.config().cache.block_size));
  if (!problems.empty()) {
    throw make_error(ErrorCode::kInvalidConfig, "attention layer '{}':{}", name_of(loader), problems);
  }
  if (config.rope && config.rope->rotary_dim == 0) config.rope->rotary_dim = config.head_dim;
  return config;
}

}  // namespace

Attention::Attention(const AttentionConfig& config, WeightLoader& loader, std::unique_ptr<KeySelector> selector)
    : KeyValueLayer(name_of(loader)),
      config_(checked(config, loader)),
      q_proj_(loader, config_.q_proj, config_.hidden_size, config_.num_heads * config_.head_dim, config_.qkv_bias),
      k_proj_(loader, config_.k_proj, config_.hidden_size, config_.num_kv_heads * config_.head_dim, config_.qkv_bias),
      v_proj_(loader, config_.v_proj, config_.hidden_size, config_.num_kv_heads * config_.head_dim, config_.qkv_bias),
      out_proj_(loader, config_.out_proj, config_.num_heads * config_.head_dim, config_.hidden_size, config_.out_bias),
      selector_(std::move(selector)) {
  if (config_.rope) rope_ = rope_frequencies(*config_.rope, config_.head_dim);
  if (config_.qk_norm_eps) {
    q_norm_.emplace(loader, config_.q_norm, config_.head_dim, *config_.qk_norm_eps);
    k_norm_.emplace(loader, config_.k_norm, config_.head_dim, *config_.qk_norm_eps);
  }
  const CacheConfig& cache = loader.config().cache;
  FullAttentionSpec spec;  // as this process runs it
  spec.block_size = cache.block_size;
  spec.num_kv_heads = config_.num_kv_heads;
  spec.head_size = config_.head_dim;
  spec.dtype = cache.kv_cache_dtype;
  cache_ = PagedKvCache(spec, selector_ ? selector_->note_elements() : 0);
  loader.config().register_layer(*this);
}

const AttentionBackend& Attention::get_attn_backend() const { return get_full_attn_backend(); }

KVCacheSpec Attention::get_kv_cache_spec(const EngineConfig& config) const {
  const int64_t ranks = config.parallel.tensor_parallel_size, heads = config_.num_kv_heads;
  // More ranks than heads: each head is held by several ranks.
  if (ranks < 1 || (heads % ranks != 0 && ranks % heads != 0)) {
    throw make_error(
        ErrorCode::kInvalidConfig,
        "layer '{}': {} key-value heads do not split over a tensor-parallel size of {}; choose a size that "
        "divides the heads or is a multiple of them",
        layer_name(), heads, ranks);
  }
  FullAttentionSpec spec = cache_.spec();
  spec.block_size = config.cache.block_size;
  spec.num_kv_heads = std::max<int64_t>(1, heads / ranks);
  spec.dtype = config.cache.kv_cache_dtype;
  return spec;
}

void Attention::attend(const ForwardBatch& batch, const float* x, const float* q, const float* k, const float* v,
                       float* out) {
  const int64_t kv_width = config_.num_kv_heads * config_.head_dim;
  cache_.store(*this, batch, k, kv_width, v, kv_width);
  PagedAttentionArgs args = cache_.step(*this, batch);
  args.q = q;
  args.out = out;
  args.q_stride = args.out_stride = config_.num_heads * config_.head_dim;
  args.num_heads = config_.num_heads;
  args.scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim));
  if (selector_) args.selection = selector_->select(*this, cache_, batch, x, nullptr, args);
  check_paged_attention(args);
  paged_attention()(args, *batch.thread_pool, *batch.workspace);
}

void Attention::forward(const ForwardBatch& batch, const float* x, float* y, bool accumulate) {
  COLUBER_CHECK(cache_.bound(), "layer '{}' has no cache: bind_kv_cache was not called", layer_name());
  WorkspaceScope scope(*batch.workspace);
  const int64_t tokens = batch.num_tokens();
  const int64_t q_width = config_.num_heads * config_.head_dim, kv_width = config_.num_kv_heads * config_.head_dim;
  float* q = batch.workspace->take<float>(tokens * q_width);
  float* k = batch.workspace->take<float>(tokens * kv_width);
  float* v = batch.workspace->take<float>(tokens * kv_width);
  float* out = batch.workspace->take<float>(tokens * q_width);
  q_proj_.forward(batch, x, tokens, q);
  k_proj_.forward(batch, x, tokens, k);
  v_proj_.forward(batch, x, tokens, v);
  if (q_norm_) {
    q_norm_->forward(batch, q, tokens * config_.num_heads, q);
    k_norm_->forward(batch, k, tokens * config_.num_kv_heads, k);
  }
  if (config_.rope) {
    RopeArgs args;
    args.q = q;
    args.q_stride = q_width;
    args.num_q_heads = config_.num_heads;
    args.k = k;
    args.k_stride = kv_width;
    args.num_k_heads = config_.num_kv_heads;
    args.head_dim = config_.head_dim;
    args.rotary_dim = config_.rope->rotary_dim;
    args.interleaved = config_.rope->interleaved;
    args.frequencies = rope_.frequencies.data();
    args.attention_factor = rope_.attention_factor;
    args.positions = batch.positions.data();
    args.num_tokens = tokens;
    rope()(args, *batch.thread_pool, *batch.workspace);
  }
  attend(batch, x, q, k, v, out);
  out_proj_.forward(batch, out, tokens, y, accumulate);
}

ExportedKeyValues Attention::export_key_values(std::span<const int32_t> pages, int64_t num_tokens) const {
  const Shape shape{config_.num_kv_heads, num_tokens, config_.head_dim};
  return {shape, shape, cache_.read(*this, pages, num_tokens, 0), cache_.read(*this, pages, num_tokens, 1)};
}

}  // namespace coluber
