// SPDX-License-Identifier: Apache-2.0
//
// Layers that declare what they keep and compute nothing: for simulating the cache, and for measuring and testing what
// the engine does itself. Sizes are in bytes, multiples of the element's.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "coluber/backend.h"
#include "coluber/config.h"
#include "coluber/mamba_base.h"

namespace coluber {

// A recurrent layer of one state.
class IdleStates : public MambaBase {
 public:
  IdleStates(int64_t bytes, DType dtype, std::optional<int64_t> prefill_checkpoint_alignment = std::nullopt)
      : MambaBase("states"),
        count_(bytes / dtype_size(dtype)),
        dtype_(dtype),
        alignment_(prefill_checkpoint_alignment) {}
  std::vector<Shape> get_state_shape() const override { return {Shape{count_}}; }
  std::vector<DType> get_state_dtype() const override { return {dtype_}; }
  MambaAttentionBackendEnum mamba_type() const override { return MambaAttentionBackendEnum::kMamba2; }
  std::optional<int64_t> get_prefill_checkpoint_alignment() const override { return alignment_; }

 private:
  int64_t count_;
  DType dtype_;
  std::optional<int64_t> alignment_;
};

// An attention layer of one head and one plane.
class IdleAttention : public AttentionLayerBase {
 public:
  IdleAttention(int64_t bytes_per_token, DType dtype)
      : AttentionLayerBase("attention"), count_(bytes_per_token / dtype_size(dtype)), dtype_(dtype) {}
  const AttentionBackend& get_attn_backend() const override { return get_full_attn_backend(); }
  KVCacheSpec get_kv_cache_spec(const EngineConfig& config) const override {
    FullAttentionSpec spec;
    spec.block_size = config.cache.block_size;
    spec.num_kv_heads = 1;
    spec.head_size = count_;
    spec.dtype = dtype_;
    spec.planes = 1;
    return spec;
  }
  void bind_kv_cache(const TensorView& pages) override { pages_ = pages; }
  const TensorView& pages() const noexcept { return pages_; }

 private:
  int64_t count_;
  DType dtype_;
  TensorView pages_;
};

}  // namespace coluber
