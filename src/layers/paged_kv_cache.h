// SPDX-License-Identifier: Apache-2.0
//
// The paged keys and values of one attention layer, as its forward and the engine's export see them: checks and keeps
// the pages that the cache binds, writes a step's tokens into them, and names them to the attention kernel. A page may
// end in a third plane, `extra` elements a token: what a layer notes about a token beside key and value, in float32
// where keys and values are narrower than 16 bits (notes are read to choose, and written again). Owns no page. Bound on
// one thread; one forward at a time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "coluber/kv_cache_spec.h"
#include "coluber/mamba_base.h"
#include "coluber/model.h"
#include "kernels/attention/paged_attention.h"
#include "tensor/device.h"

namespace coluber {

// What leaves the engine of a layer's pages: shapes are [heads, T, dim].
struct ExportedKeyValues {
  Shape key_shape, value_shape;
  std::vector<float> keys, values;
};

// A layer whose pages the engine can export.
class KeyValueLayer : public AttentionLayerBase {
 public:
  using AttentionLayerBase::AttentionLayerBase;
  // Keys and values of a sequence's first `num_tokens` tokens, as published caches hold them.
  virtual ExportedKeyValues export_key_values(std::span<const int32_t> pages, int64_t num_tokens) const = 0;
};

// What pages can hold; the narrow ones with a scale a row.
inline bool is_page_dtype(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kBFloat16 || dtype == DType::kFloat16 || dtype == DType::kInt8 ||
         dtype == DType::kFloat8E4M3;
}

class PagedKvCache {
 public:
  PagedKvCache() = default;
  // `device` is where the pages will lie.
  explicit PagedKvCache(const FullAttentionSpec& spec, int64_t extra = 0, Device& device = cpu_device());

  // The spec with room for the extra plane and, of bytes, the rows' scales.
  const FullAttentionSpec& spec() const noexcept { return spec_; }
  // Throws Error(kInvalidConfig) where pages are too small or not aligned.
  void bind(const AttentionLayerBase& layer, const TensorView& page);
  bool bound() const noexcept { return pages_.base != nullptr; }
  const KvPages& pages() const noexcept { return pages_; }
  // The extra plane, as pages of one head whose values are their keys.
  KvPages extra_pages() const noexcept;

  // k, v: [T, Hkv, D] of the step's tokens (v is not read where values are keys), extra [T, extra].
  void store(const AttentionLayerBase& layer, const ForwardBatch& batch, const float* k, int64_t k_stride,
             const float* v, int64_t v_stride) const;
  void store_extra(const AttentionLayerBase& layer, const ForwardBatch& batch, const float* extra,
                   int64_t extra_stride) const;
  // The step's rows and pages; queries, output, heads and scale are the caller's.
  PagedAttentionArgs step(const AttentionLayerBase& layer, const ForwardBatch& batch) const;

  // Plane 0 (keys) or 1 (values) of a sequence's first tokens: [Hkv, num_tokens, D].
  std::vector<float> read(const AttentionLayerBase& layer, std::span<const int32_t> ids, int64_t num_tokens,
                          int64_t plane) const;

 private:
  const FullAttentionMetadata& metadata(const AttentionLayerBase& layer, const ForwardBatch& batch) const;

  Device* device_ = nullptr;
  FullAttentionSpec spec_;
  int64_t extra_ = 0;
  DType extra_dtype_ = DType::kFloat32;
  KvPages pages_;
  int64_t num_pages_ = 0;
};

// Attends with what `step` gave and the caller added; the arrays of its rows are the host's.
void attend_pages(PagedAttentionArgs args, const Execution& on);

}  // namespace coluber
