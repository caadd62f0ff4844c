// SPDX-License-Identifier: Apache-2.0
#include "layers/paged_kv_cache.h"

#include <algorithm>

#include "base/dtype.h"
#include "base/error.h"
#include "kernels/attention/store_kv.h"
#include "tensor/cuda_step.h"

namespace coluber {

PagedKvCache::PagedKvCache(const FullAttentionSpec& spec, int64_t extra, Device& device)
    : device_(&device), spec_(spec), extra_(extra), extra_dtype_(spec.dtype) {
  spec_.row_scales = has_row_scale(spec_.dtype);
  if (spec_.row_scales) extra_dtype_ = DType::kFloat32;
  if (extra > 0) spec_.page_size_padded = spec_.page_size_bytes() + dtype_bytes(extra_dtype_, spec_.block_size * extra);
}

void PagedKvCache::bind(const AttentionLayerBase& layer, const TensorView& page) {
  COLUBER_CHECK(page.shape.rank() == 4 && page.shape[1] == 1 && page.shape[2] == 1,
                "layer '{}': pages are bytes [B, 1, 1, C], found {}", layer.layer_name(), page.shape.to_string());
  const int64_t bytes = page.shape[3] * dtype_size(page.dtype), stride = page.strides[0] * dtype_size(page.dtype);
  const int64_t element =
      extra_ > 0 ? std::max(dtype_size(spec_.dtype), dtype_size(extra_dtype_)) : dtype_size(spec_.dtype);
  if (extra_ > 0 && spec_.row_scales && spec_.planes * spec_.block_size * spec_.num_kv_heads * spec_.head_size % 4 != 0)
    throw make_error(
        ErrorCode::kInvalidConfig,
        "layer '{}': behind {} tokens of {} heads of {} in {} its notes do not lie at multiples of 4 bytes; "
        "choose a block size of a multiple of 4, or a wider kv_cache_dtype",
        layer.layer_name(), spec_.block_size, spec_.num_kv_heads, spec_.head_size, dtype_name(spec_.dtype));
  if (bytes < spec_.page_size_bytes() || (page.shape[0] > 1 && stride < bytes)) {
    throw make_error(ErrorCode::kInvalidConfig,
                     "layer '{}': a page needs {} bytes, the cache gives {} at a stride of {}", layer.layer_name(),
                     spec_.page_size_bytes(), bytes, stride);
  }
  if (stride % element != 0 || reinterpret_cast<uintptr_t>(page.data) % static_cast<size_t>(element) != 0) {
    throw make_error(ErrorCode::kInvalidConfig,
                     "layer '{}': pages at {} bytes apart are not aligned to elements of {} bytes", layer.layer_name(),
                     stride, element);
  }
  num_pages_ = page.shape[0];
  pages_ = {page.data, stride, spec_.block_size, spec_.num_kv_heads, spec_.head_size, spec_.dtype, spec_.planes == 1};
}

KvPages PagedKvCache::extra_pages() const noexcept {
  KvPages extra = pages_;
  extra.base += spec_.planes * spec_.block_size * pages_.token_bytes();
  extra.num_kv_heads = 1;
  extra.head_dim = extra_;
  extra.dtype = extra_dtype_;
  extra.shared_values = true;
  return extra;
}

const FullAttentionMetadata& PagedKvCache::metadata(const AttentionLayerBase& layer, const ForwardBatch& batch) const {
  COLUBER_CHECK(bound(), "layer '{}' has no cache: bind_kv_cache was not called", layer.layer_name());
  return batch.metadata<FullAttentionMetadata>(layer);
}

void PagedKvCache::store(const AttentionLayerBase& layer, const ForwardBatch& batch, const float* k, int64_t k_stride,
                         const float* v, int64_t v_stride) const {
  const FullAttentionMetadata& step = metadata(layer, batch);
  const int64_t tokens = batch.num_tokens();
  COLUBER_CHECK(static_cast<int64_t>(step.slot_mapping.size()) >= tokens, "layer '{}': {} slots for {} tokens",
                layer.layer_name(), step.slot_mapping.size(), tokens);
  for (int64_t slot : step.slot_mapping.first(static_cast<size_t>(tokens))) {
    COLUBER_CHECK(slot < num_pages_ * pages_.block_size, "layer '{}': slot {} lies beyond {} pages of {} tokens",
                  layer.layer_name(), slot, num_pages_, pages_.block_size);
  }
  store_kv()(StoreKvArgs{k, k_stride, v, v_stride, tokens, device_array(batch, step.slot_mapping), pages_}, batch);
}

void PagedKvCache::store_extra(const AttentionLayerBase& layer, const ForwardBatch& batch, const float* extra,
                               int64_t extra_stride) const {
  const FullAttentionMetadata& step = metadata(layer, batch);
  store_kv()(StoreKvArgs{extra, extra_stride, nullptr, 0, batch.num_tokens(), step.slot_mapping.data(), extra_pages()},
             batch);
}

PagedAttentionArgs PagedKvCache::step(const AttentionLayerBase& layer, const ForwardBatch& batch) const {
  const FullAttentionMetadata& step = metadata(layer, batch);
  PagedAttentionArgs args;
  args.num_tokens = batch.num_tokens();
  args.kv = pages_;
  args.block_table = step.block_table;
  args.query_start_loc = step.query_start_loc.data();
  args.seq_lens = step.seq_lens.data();
  args.num_reqs = step.num_reqs;
  return args;
}

void attend_pages(PagedAttentionArgs args, const Execution& on) {
  check_paged_attention(args);
  args.block_table.data =
      device_array(on, std::span(args.block_table.data, static_cast<size_t>(args.num_reqs * args.block_table.stride)));
  const auto rows = static_cast<size_t>(args.num_reqs);
  args.query_start_loc = device_array(on, std::span(args.query_start_loc, rows + 1));
  args.seq_lens = device_array(on, std::span(args.seq_lens, rows));
  paged_attention()(args, on);
}

std::vector<float> PagedKvCache::read(const AttentionLayerBase& layer, std::span<const int32_t> ids, int64_t num_tokens,
                                      int64_t plane) const {
  COLUBER_CHECK(bound(), "layer '{}' has no cache: bind_kv_cache was not called", layer.layer_name());
  const int64_t heads = pages_.num_kv_heads, head_dim = pages_.head_dim, block = pages_.block_size;
  COLUBER_CHECK(num_tokens <= static_cast<int64_t>(ids.size()) * block, "layer '{}': {} tokens in {} pages of {}",
                layer.layer_name(), num_tokens, ids.size(), block);
  std::vector<float> out(static_cast<size_t>(heads * num_tokens * head_dim));
  std::vector<std::byte> host(device_->is_host() ? 0 : static_cast<size_t>(2 * block * pages_.token_bytes()));
  for (int64_t t = 0; t < num_tokens; ++t) {
    const std::byte* page = pages_.page(ids[static_cast<size_t>(t / block)]);
    if (!device_->is_host()) {
      if (t % block == 0) device_->copy(host.data(), page, std::ssize(host));
      page = host.data();
    }
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t at = plane * pages_.plane_bytes() + t % block * pages_.token_bytes() + h * pages_.head_bytes();
      read_kv_row(pages_, page + at, head_dim, out.data() + (h * num_tokens + t) * head_dim);
    }
  }
  return out;
}

}  // namespace coluber
