// SPDX-License-Identifier: Apache-2.0
#include "layers/attention.h"

#include <algorithm>
#include <cmath>

#include "base/dtype.h"
#include "base/error.h"
#include "coluber/backend.h"
#include "kernels/attention/store_kv.h"
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

Attention::Attention(const AttentionConfig& config, WeightLoader& loader)
    : AttentionLayerBase(name_of(loader)),
      config_(checked(config, loader)),
      q_proj_(loader, config_.q_proj, config_.hidden_size, config_.num_heads * config_.head_dim, config_.qkv_bias),
      k_proj_(loader, config_.k_proj, config_.hidden_size, config_.num_kv_heads * config_.head_dim, config_.qkv_bias),
      v_proj_(loader, config_.v_proj, config_.hidden_size, config_.num_kv_heads * config_.head_dim, config_.qkv_bias),
      out_proj_(loader, config_.out_proj, config_.num_heads * config_.head_dim, config_.hidden_size, config_.out_bias) {
  if (config_.rope) rope_ = rope_frequencies(*config_.rope, config_.head_dim);
  if (config_.qk_norm_eps) {
    q_norm_.emplace(loader, config_.q_norm, config_.head_dim, *config_.qk_norm_eps);
    k_norm_.emplace(loader, config_.k_norm, config_.head_dim, *config_.qk_norm_eps);
  }
  const CacheConfig& cache = loader.config().cache;
  spec_ = {cache.block_size, config_.num_kv_heads, config_.head_dim, cache.kv_cache_dtype, std::nullopt};
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
  FullAttentionSpec spec;
  spec.block_size = config.cache.block_size;
  spec.num_kv_heads = std::max<int64_t>(1, heads / ranks);
  spec.head_size = config_.head_dim;
  spec.dtype = config.cache.kv_cache_dtype;
  return spec;
}

void Attention::bind_kv_cache(const TensorView& page) {
  COLUBER_CHECK(page.shape.rank() == 4 && page.shape[1] == 1 && page.shape[2] == 1,
                "layer '{}': pages are bytes [B, 1, 1, C], found {}", layer_name(), page.shape.to_string());
  const int64_t bytes = page.shape[3] * dtype_size(page.dtype), stride = page.strides[0] * dtype_size(page.dtype);
  const int64_t element = dtype_size(spec_.dtype);
  if (bytes < spec_.page_size_bytes() || (page.shape[0] > 1 && stride < bytes)) {
    throw make_error(ErrorCode::kInvalidConfig,
                     "layer '{}': a page needs {} bytes, the cache gives {} at a stride of {}", layer_name(),
                     spec_.page_size_bytes(), bytes, stride);
  }
  if (stride % element != 0 || reinterpret_cast<uintptr_t>(page.data) % static_cast<size_t>(element) != 0) {
    throw make_error(ErrorCode::kInvalidConfig,
                     "layer '{}': pages at {} bytes apart are not aligned to elements of {} bytes", layer_name(),
                     stride, element);
  }
  num_pages_ = page.shape[0];
  pages_ = {page.data, stride, spec_.block_size, spec_.num_kv_heads, spec_.head_size, spec_.dtype};
}

void Attention::attend(const ForwardBatch& batch, const float* q, const float* k, const float* v, float* out) const {
  const auto& metadata = batch.metadata<FullAttentionMetadata>(*this);
  const int64_t tokens = batch.num_tokens(), kv_width = config_.num_kv_heads * config_.head_dim;
  COLUBER_CHECK(static_cast<int64_t>(metadata.slot_mapping.size()) >= tokens, "layer '{}': {} slots for {} tokens",
                layer_name(), metadata.slot_mapping.size(), tokens);
  for (int64_t slot : metadata.slot_mapping.first(static_cast<size_t>(tokens))) {
    COLUBER_CHECK(slot < num_pages_ * pages_.block_size, "layer '{}': slot {} lies beyond {} pages of {} tokens",
                  layer_name(), slot, num_pages_, pages_.block_size);
  }
  store_kv()(StoreKvArgs{k, kv_width, v, kv_width, tokens, metadata.slot_mapping.data(), pages_}, *batch.thread_pool);
  PagedAttentionArgs args;
  args.q = q;
  args.out = out;
  args.q_stride = args.out_stride = config_.num_heads * config_.head_dim;
  args.num_tokens = tokens;
  args.num_heads = config_.num_heads;
  args.kv = pages_;
  args.block_table = metadata.block_table;
  args.query_start_loc = metadata.query_start_loc.data();
  args.seq_lens = metadata.seq_lens.data();
  args.num_reqs = metadata.num_reqs;
  args.scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim));
  check_paged_attention(args);
  paged_attention()(args, *batch.thread_pool, *batch.workspace);
}

void Attention::forward(const ForwardBatch& batch, const float* x, float* y, bool accumulate) {
  COLUBER_CHECK(pages_.base != nullptr, "layer '{}' has no cache: bind_kv_cache was not called", layer_name());
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
  attend(batch, q, k, v, out);
  out_proj_.forward(batch, out, tokens, y, accumulate);
}

void Attention::export_kv(std::span<const int32_t> pages, int64_t num_tokens, std::vector<float>& keys,
                          std::vector<float>& values) const {
  COLUBER_CHECK(pages_.base != nullptr, "layer '{}' has no cache: bind_kv_cache was not called", layer_name());
  const int64_t heads = config_.num_kv_heads, head_dim = config_.head_dim, block = pages_.block_size;
  COLUBER_CHECK(num_tokens <= static_cast<int64_t>(pages.size()) * block, "layer '{}': {} tokens in {} pages of {}",
                layer_name(), num_tokens, pages.size(), block);
  std::vector<float>* outputs[2] = {&keys, &values};
  for (int64_t plane = 0; plane < 2; ++plane) {
    outputs[plane]->resize(static_cast<size_t>(heads * num_tokens * head_dim));
    for (int64_t t = 0; t < num_tokens; ++t) {
      const std::byte* page = pages_.page(pages[static_cast<size_t>(t / block)]);
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t element = ((plane * block + t % block) * heads + h) * head_dim;
        convert_to_float(page + dtype_bytes(pages_.dtype, element), pages_.dtype, head_dim,
                         outputs[plane]->data() + (h * num_tokens + t) * head_dim);
      }
    }
  }
}

}  // namespace coluber
