// SPDX-License-Identifier: Apache-2.0
//
// Causal softmax attention with grouped query heads over paged keys and values: projections, optional RMS norm of each
// query and key head, optional rotary embedding, then kernels/attention. Owns its weights, never its pages: the cache
// binds them. `forward` takes rows in any order and reads the step's FullAttentionMetadata. Made and bound on one
// thread; one forward at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coluber/mamba_base.h"
#include "coluber/model.h"
#include "kernels/rope/rope.h"
#include "layers/key_selector.h"
#include "layers/linear.h"
#include "layers/norm.h"
#include "layers/paged_kv_cache.h"
#include "layers/weight_loader.h"

namespace coluber {

struct AttentionConfig {
  int64_t hidden_size = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  std::optional<RopeConfig> rope = std::nullopt;     // none: no positions (some hybrids); rotary_dim 0: the whole head
  std::optional<double> qk_norm_eps = std::nullopt;  // RMS norm over each head of q and k, before the rotation
  bool qkv_bias = false;
  bool out_bias = false;
  // Tensor names below the layer's prefix, without ".weight".
  std::string q_proj = "q_proj";
  std::string k_proj = "k_proj";
  std::string v_proj = "v_proj";
  std::string out_proj = "o_proj";
  std::string q_norm = "q_norm";
  std::string k_norm = "k_norm";
};

class Attention : public KeyValueLayer {
 public:
  // `loader` is scoped to the layer ("model.layers.2.self_attn", which becomes its name); registers the layer in the
  // loader's configuration. A `selector` chooses the keys that a query sees. Throws Error(kInvalidConfig) where sizes
  // do not fit together.
  Attention(const AttentionConfig& config, WeightLoader& loader, std::unique_ptr<KeySelector> selector = nullptr);

  int64_t num_heads() const noexcept { return config_.num_heads; }
  int64_t num_kv_heads() const noexcept { return config_.num_kv_heads; }
  int64_t head_dim() const noexcept { return config_.head_dim; }

  const AttentionBackend& get_attn_backend() const override;
  KVCacheSpec get_kv_cache_spec(const EngineConfig& config) const override;
  void bind_kv_cache(const TensorView& page) override { cache_.bind(*this, page); }

  // x [T, hidden_size] to y [T, hidden_size], overwritten unless `accumulate`; y must not overlap x.
  void forward(const ForwardBatch& batch, const float* x, float* y, bool accumulate = false);

  // Keys after norm and rotation.
  ExportedKeyValues export_key_values(std::span<const int32_t> pages, int64_t num_tokens) const override;

 private:
  void attend(const ForwardBatch& batch, const float* x, const float* q, const float* k, const float* v, float* out);

  AttentionConfig config_;
  RopeFrequencies rope_;
  Linear q_proj_, k_proj_, v_proj_, out_proj_;
  std::optional<RmsNorm> q_norm_, k_norm_;
  std::unique_ptr<KeySelector> selector_;
  PagedKvCache cache_;
};

}  // namespace coluber
