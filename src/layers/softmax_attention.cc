// SPDX-License-Identifier: Apache-2.0
#include "layers/softmax_attention.h"

#include <algorithm>
#include <cmath>

#include "base/dtype.h"
#include "base/error.h"
#include "coluber/backend.h"
#include "layers/recurrent_layer.h"
#include "tensor/workspace.h"

namespace coluber {
namespace {

SoftmaxAttentionConfig checked(SoftmaxAttentionConfig config, const WeightLoader& loader) {
  std::string problems;
  auto expect = [&](bool fine, const std::string& message) {
    if (!fine) problems += "\n  " + message;
  };
  expect(config.head_dim > 0, fmt::format("head dim: expected a positive number, found {}", config.head_dim));
  expect(config.num_kv_heads > 0 && config.num_heads > 0 &&
             config.num_heads % std::max<int64_t>(config.num_kv_heads, 1) == 0,
         fmt::format("attention heads: expected a positive multiple of the key-value heads, found {} and {}",
                     config.num_heads, config.num_kv_heads));
  expect(config.sliding_window >= 0,
         fmt::format("sliding window: expected a positive number, or 0 for none, found {}", config.sliding_window));
  expect(!config.scale || std::isfinite(*config.scale),
         fmt::format("scale of the scores: expected a finite number, found {}", config.scale.value_or(0)));
  const DType dtype = loader.config().cache.kv_cache_dtype;
  expect(is_page_dtype(dtype), fmt::format("key-value cache dtype: expected float32, bfloat16, float16, int8 or "
                                           "float8_e4m3fn, found {}",
                                           dtype_name(dtype)));
  expect(loader.config().cache.block_size > 0,
         fmt::format("cache block size: expected a positive number, found {}", loader.config().cache.block_size));
  if (!problems.empty()) {
    throw make_error(ErrorCode::kInvalidConfig, "attention layer '{}':{}", layer_name_of(loader), problems);
  }
  return config;
}

}  // namespace

SoftmaxAttention::SoftmaxAttention(const SoftmaxAttentionConfig& config, const WeightLoader& loader,
                                   std::unique_ptr<KeySelector> selector)
    : KeyValueLayer(layer_name_of(loader)),
      config_(checked(config, loader)),
      rotation_(config_.rope, config_.head_dim, loader),
      selector_(std::move(selector)) {
  const CacheConfig& cache = loader.config().cache;
  FullAttentionSpec spec;  // as this process runs it
  spec.block_size = cache.block_size;
  spec.num_kv_heads = config_.num_kv_heads;
  spec.head_size = config_.head_dim;
  spec.dtype = cache.kv_cache_dtype;
  cache_ = PagedKvCache(spec, selector_ ? selector_->note_elements() : 0, loader.device());
  loader.config().register_layer(*this);
}

const AttentionBackend& SoftmaxAttention::get_attn_backend() const { return get_full_attn_backend(); }

KVCacheSpec SoftmaxAttention::get_kv_cache_spec(const EngineConfig& config) const {
  const int64_t ranks = config.parallel.tensor_parallel_size, heads = config_.num_kv_heads;
  // More ranks than heads: each head is held by several ranks.
  expect_even_shares(*this, "key-value heads", heads, ranks, /*may_repeat=*/true);
  FullAttentionSpec spec;
  spec.block_size = config.cache.block_size;
  spec.num_kv_heads = std::max<int64_t>(1, heads / ranks);
  spec.head_size = config_.head_dim;
  spec.dtype = config.cache.kv_cache_dtype;
  return PagedKvCache(spec, selector_ ? selector_->note_elements() : 0).spec();
}

void SoftmaxAttention::rotate(const ForwardBatch& batch, float* q, float* k) const {
  rotation_.forward(batch, {q, q_width(), config_.num_heads}, {k, kv_width(), config_.num_kv_heads}, config_.head_dim);
}

void SoftmaxAttention::attend(const ForwardBatch& batch, const float* q, const float* k, const float* v, float* out,
                              const AttendOptions& options) const {
  WorkspaceScope scope(*batch.workspace);
  cache_.store(*this, batch, k, kv_width(), v, kv_width());
  PagedAttentionArgs args = cache_.step(*this, batch);
  args.q = q;
  args.out = out;
  args.q_stride = args.out_stride = q_width();
  args.num_heads = config_.num_heads;
  args.scale = static_cast<float>(config_.scale.value_or(1.0 / std::sqrt(static_cast<double>(config_.head_dim))));
  args.window = config_.sliding_window;
  args.bias = options.bias;
  args.bias_extent = options.bias_extent;
  if (selector_) args.selection = selector_->select(*this, cache_, batch, options.x, options.query_source, args);
  attend_pages(args, batch);
}

ExportedKeyValues SoftmaxAttention::export_key_values(std::span<const int32_t> pages, int64_t num_tokens) const {
  const Shape shape{config_.num_kv_heads, num_tokens, config_.head_dim};
  return {shape, shape, cache_.read(*this, pages, num_tokens, 0), cache_.read(*this, pages, num_tokens, 1)};
}

}  // namespace coluber
