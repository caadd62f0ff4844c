// SPDX-License-Identifier: Apache-2.0
//
// What every layer of causal softmax attention over paged keys and values does once it has queries, keys and values:
// rotates them, stores keys and values in its pages, attends, exports. How they are made is the derived layer's
// (layers/attention.h for most). Owns no weights and no pages: the cache binds them. Made and bound on one thread; one
// forward at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "coluber/model.h"
#include "kernels/rope/rope.h"
#include "layers/key_selector.h"
#include "layers/paged_kv_cache.h"
#include "layers/rotation.h"
#include "layers/weight_loader.h"

namespace coluber {

struct SoftmaxAttentionConfig {
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  std::optional<RopeConfig> rope = std::nullopt;  // none: no positions (some hybrids); rotary_dim 0: the whole head
  std::optional<double> scale = std::nullopt;     // of a query times a key; none: head_dim^-0.5
  int64_t sliding_window = 0;                     // positions a query sees, its own among them; 0: all
};

// What an attending layer may add to queries, keys and values.
struct AttendOptions {
  const float* bias = nullptr;  // [T, Hq, bias_extent] of the last positions, the query's own last
  int64_t bias_extent = 0;
  const float* x = nullptr;  // [T, hidden_size], what a key selector reads
  const float* query_source = nullptr;
};

class SoftmaxAttention : public KeyValueLayer {
 public:
  int64_t num_heads() const noexcept { return config_.num_heads; }
  int64_t num_kv_heads() const noexcept { return config_.num_kv_heads; }
  int64_t head_dim() const noexcept { return config_.head_dim; }
  int64_t q_width() const noexcept { return config_.num_heads * config_.head_dim; }
  int64_t kv_width() const noexcept { return config_.num_kv_heads * config_.head_dim; }

  const AttentionBackend& get_attn_backend() const override;
  KVCacheSpec get_kv_cache_spec(const EngineConfig& config) const override;
  void bind_kv_cache(const TensorView& page) override { cache_.bind(*this, page); }

  // Keys as they are stored: after norm and rotation.
  ExportedKeyValues export_key_values(std::span<const int32_t> pages, int64_t num_tokens) const override;

 protected:
  // `loader` is scoped to the layer (which becomes its name); registers the layer in the loader's configuration. Throws
  // Error(kInvalidConfig) where sizes do not fit together. `selector` (or null) makes the attention sparse.
  SoftmaxAttention(const SoftmaxAttentionConfig& config, const WeightLoader& loader,
                   std::unique_ptr<KeySelector> selector = nullptr);

  // q [T, Hq, D] and k [T, Hkv, D], in place.
  void rotate(const ForwardBatch& batch, float* q, float* k) const;
  // Stores k and v [T, Hkv, D], then q [T, Hq, D] to out [T, Hq, D].
  void attend(const ForwardBatch& batch, const float* q, const float* k, const float* v, float* out,
              const AttendOptions& options = {}) const;

 private:
  SoftmaxAttentionConfig config_;
  Rotation rotation_;
  std::unique_ptr<KeySelector> selector_;
  PagedKvCache cache_;
};

}  // namespace coluber
