// SPDX-License-Identifier: Apache-2.0
//
// Multi-head latent attention (DeepSeek-AI, DeepSeek-V2, 2024): keys and values of all heads are linear in one latent a
// token, c = norm(W_kva x), beside a part of the key that is rotated and shared by the heads. Computed in the absorbed
// form: a head's query is taken into the latent space, attends there, and its result is taken out, so that the cache
// holds kv_lora_rank + qk_rope_head_dim elements a token whatever the number of heads, and a decode reads each once:
//
//   score[h, j] = scale * (W_uk[h]^T q_nope[h] . c[j] + q_rope[h] . k_rope[j])      out[h] = W_uv[h] sum_j p[h, j] c[j]
//
// Owns its weights, never its pages. `forward` takes rows in any order and reads the step's FullAttentionMetadata. Made
// and bound on one thread; one forward at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coluber/model.h"
#include "kernels/gemm/packed_matrix.h"
#include "kernels/rope/rope.h"
#include "layers/key_selector.h"
#include "layers/linear.h"
#include "layers/norm.h"
#include "layers/paged_kv_cache.h"
#include "layers/rotation.h"
#include "layers/weight_loader.h"

namespace coluber {

struct LatentAttentionConfig {
  int64_t hidden_size = 0;
  int64_t num_heads = 0;
  std::optional<int64_t> q_lora_rank = std::nullopt;  // none: queries come straight from x
  int64_t kv_lora_rank = 0;
  int64_t qk_nope_head_dim = 0;
  int64_t qk_rope_head_dim = 0;  // may be 0
  int64_t v_head_dim = 0;
  double norm_eps = 1e-6;                         // of both latents
  std::optional<RopeConfig> rope = std::nullopt;  // of the shared part; none: it is not rotated (Kimi)
  double scale = 0;                               // of scores; 0: 1 / sqrt(qk_nope_head_dim + qk_rope_head_dim)
  bool bias = false;                              // on q_a_proj, kv_a_proj and out_proj
  // Export each head's keys and values instead of latent and shared part, where published caches hold those.
  bool export_heads = false;
  // Tensor names below the layer's prefix, without ".weight".
  std::string q_proj = "q_proj";
  std::string q_a_proj = "q_a_proj";
  std::string q_a_norm = "q_a_layernorm";
  std::string q_b_proj = "q_b_proj";
  std::string kv_a_proj = "kv_a_proj_with_mqa";
  std::string kv_a_norm = "kv_a_layernorm";
  std::string kv_b_proj = "kv_b_proj";
  std::string out_proj = "o_proj";
};

class LatentAttention : public KeyValueLayer {
 public:
  // `loader` is scoped to the layer, whose name it gives; registers the layer in the loader's configuration. A
  // `selector` chooses the keys that a query sees; it needs q_lora_rank. Throws Error(kInvalidConfig) naming each size
  // that makes no sense.
  LatentAttention(const LatentAttentionConfig& config, WeightLoader loader,
                  std::unique_ptr<KeySelector> selector = nullptr);

  const AttentionBackend& get_attn_backend() const override;
  // Every rank holds the whole latent.
  KVCacheSpec get_kv_cache_spec(const EngineConfig& config) const override;
  void bind_kv_cache(const TensorView& page) override { cache_.bind(*this, page); }

  // x [T, hidden_size] to y [T, hidden_size], overwritten unless `accumulate`; y must not overlap x.
  void forward(const ForwardBatch& batch, const float* x, float* y, bool accumulate = false);

  // Latent after its norm as key [1, T, kv_lora_rank], shared part after rotation as value [1, T, qk_rope_head_dim]; or
  // each head's own with `export_heads`.
  ExportedKeyValues export_key_values(std::span<const int32_t> pages, int64_t num_tokens) const override;

 private:
  int64_t row_elements() const { return config_.kv_lora_rank + config_.qk_rope_head_dim; }
  int64_t qk_head_dim() const { return config_.qk_nope_head_dim + config_.qk_rope_head_dim; }
  void take_kv_b(WeightLoader& loader);
  ExportedKeyValues export_heads(const std::vector<float>& rows, int64_t num_tokens) const;
  // Queries [T, H, qk_head_dim]; returns the normed latent that they come from, null without one.
  const float* project_queries(const ForwardBatch& batch, const float* x, float* q) const;
  void project_row(const ForwardBatch& batch, const float* x, float* row) const;
  void rotate(const ForwardBatch& batch, float* q, float* row) const;
  // [T, H, in] by each head's matrix to [T, H, out].
  void multiply_heads(const ForwardBatch& batch, const std::vector<PackedMatrix>& weights, const float* in,
                      int64_t in_stride, float* out, int64_t out_stride) const;

  LatentAttentionConfig config_;
  Rotation rotation_;
  std::optional<Linear> q_proj_, q_a_proj_, q_b_proj_;
  std::optional<RmsNorm> q_a_norm_;
  Linear kv_a_proj_;
  RmsNorm kv_a_norm_;
  std::vector<PackedMatrix> w_uk_;  // [H] of [kv_lora_rank, qk_nope_head_dim]
  std::vector<PackedMatrix> w_uv_;  // [H] of [v_head_dim, kv_lora_rank]
  Linear out_proj_;
  std::unique_ptr<KeySelector> selector_;
  PagedKvCache cache_;
};

}  // namespace coluber
