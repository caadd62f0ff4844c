// SPDX-License-Identifier: Apache-2.0
#include "layers/latent_attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/dtype.h"
#include "base/error.h"
#include "coluber/backend.h"
#include "kernels/elementwise/scale.h"
#include "kernels/gemm/gemm.h"
#include "kernels/norm/norm.h"
#include "layers/recurrent_layer.h"
#include "tensor/tensor_convert.h"
#include "tensor/workspace.h"

namespace coluber {
namespace {

LatentAttentionConfig checked(LatentAttentionConfig config, const WeightLoader& loader, bool selects) {
  SizeChecks checks;
  checks.expect_positive("hidden size", config.hidden_size);
  checks.expect_positive("attention heads", config.num_heads);
  checks.expect_positive("key-value latent (kv_lora_rank)", config.kv_lora_rank);
  checks.expect_positive("unrotated part of a query (qk_nope_head_dim)", config.qk_nope_head_dim);
  checks.expect_positive("value head dim (v_head_dim)", config.v_head_dim);
  checks.expect(config.qk_rope_head_dim >= 0, fmt::format("rotated part of a query (qk_rope_head_dim): expected 0 or "
                                                          "more, found {}",
                                                          config.qk_rope_head_dim));
  checks.expect(!selects || config.q_lora_rank.has_value(), "choosing keys needs a query latent (q_lora_rank)");
  if (config.q_lora_rank) checks.expect_positive("query latent (q_lora_rank)", *config.q_lora_rank);
  const DType dtype = loader.config().cache.kv_cache_dtype;
  checks.expect(is_page_dtype(dtype), fmt::format("key-value cache dtype: expected float32, bfloat16, float16, int8 or "
                                                  "float8_e4m3fn, found {}",
                                                  dtype_name(dtype)));
  checks.expect_positive("cache block size", loader.config().cache.block_size);
  checks.finish("latent attention", loader);
  if (config.qk_rope_head_dim == 0) config.rope.reset();
  if (config.scale == 0) {
    config.scale = 1.0 / std::sqrt(static_cast<double>(config.qk_nope_head_dim + config.qk_rope_head_dim));
  }
  return config;
}

// [rows, cols] to [cols, rows], of elements of any size.
std::vector<std::byte> transposed(const std::byte* matrix, int64_t rows, int64_t cols, int64_t element) {
  std::vector<std::byte> out(static_cast<size_t>(rows * cols * element));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      std::memcpy(out.data() + (c * rows + r) * element, matrix + (r * cols + c) * element,
                  static_cast<size_t>(element));
    }
  }
  return out;
}

}  // namespace

LatentAttention::LatentAttention(const LatentAttentionConfig& config, WeightLoader loader,
                                 std::unique_ptr<KeySelector> selector)
    : KeyValueLayer(layer_name_of(loader)),
      config_(checked(config, loader, selector != nullptr)),
      rotation_(config_.rope, config_.qk_rope_head_dim, loader),
      kv_a_proj_(loader, config_.kv_a_proj, config_.hidden_size, row_elements(), config_.bias),
      kv_a_norm_(loader, config_.kv_a_norm, config_.kv_lora_rank, config_.norm_eps),
      out_proj_(loader, config_.out_proj, config_.num_heads * config_.v_head_dim, config_.hidden_size, config_.bias),
      selector_(std::move(selector)) {
  const int64_t q_width = config_.num_heads * qk_head_dim();
  if (config_.q_lora_rank) {
    q_a_proj_.emplace(loader, config_.q_a_proj, config_.hidden_size, *config_.q_lora_rank, config_.bias);
    q_a_norm_.emplace(loader, config_.q_a_norm, *config_.q_lora_rank, config_.norm_eps);
    q_b_proj_.emplace(loader, config_.q_b_proj, *config_.q_lora_rank, q_width, false);
  } else {
    q_proj_.emplace(loader, config_.q_proj, config_.hidden_size, q_width, false);
  }
  take_kv_b(loader);
  FullAttentionSpec spec;
  spec.block_size = loader.config().cache.block_size;
  spec.num_kv_heads = 1;
  spec.head_size = row_elements();
  spec.dtype = loader.config().cache.kv_cache_dtype;
  spec.planes = 1;
  cache_ = PagedKvCache(spec, selector_ ? selector_->note_elements() : 0, loader.device());
  loader.config().register_layer(*this);
}

// Rows of the stored matrix are, head after head, what makes a key (qk_nope_head_dim) and what makes a value.
void LatentAttention::take_kv_b(WeightLoader& loader) {
  const int64_t rank = config_.kv_lora_rank, nope = config_.qk_nope_head_dim, v = config_.v_head_dim;
  const Shape shape{config_.num_heads * (nope + v), rank};
  TensorView weight = loader.take(config_.kv_b_proj + ".weight", shape);
  const bool direct =
      weight.dtype == DType::kFloat32 || weight.dtype == DType::kBFloat16 || weight.dtype == DType::kFloat16;
  const DType dtype = direct ? weight.dtype : DType::kFloat32;
  loader.count_matmul(shape.count(), dtype_bytes(dtype, shape.count()));
  if (loader.describe_only()) return;
  std::vector<float> widened;
  if (!direct) {
    widened.resize(static_cast<size_t>(shape.count()));
    convert_to_float(weight, widened.data());
  }
  const std::byte* data = direct ? weight.data : reinterpret_cast<const std::byte*>(widened.data());
  const int64_t element = dtype_size(dtype);
  for (int64_t h = 0; h < config_.num_heads; ++h) {
    const std::byte* keys = data + h * (nope + v) * rank * element;
    const std::vector<std::byte> turned = transposed(keys, nope, rank, element);
    w_uk_.push_back(place_weight(loader, TensorView::contiguous(turned.data(), dtype, Shape{rank, nope})));
    w_uv_.push_back(place_weight(loader, TensorView::contiguous(keys + nope * rank * element, dtype, Shape{v, rank})));
  }
  loader.release(weight);
}

const AttentionBackend& LatentAttention::get_attn_backend() const { return get_full_attn_backend(); }

KVCacheSpec LatentAttention::get_kv_cache_spec(const EngineConfig&) const { return cache_.spec(); }

const float* LatentAttention::project_queries(const ForwardBatch& batch, const float* x, float* q) const {
  const int64_t tokens = batch.num_tokens();
  if (q_proj_) {
    q_proj_->forward(batch, x, tokens, q);
    return nullptr;
  }
  float* latent = batch.workspace->take<float>(tokens * *config_.q_lora_rank);
  q_a_proj_->forward(batch, x, tokens, latent);
  q_a_norm_->forward(batch, latent, tokens, latent);
  q_b_proj_->forward(batch, latent, tokens, q);
  return latent;
}

void LatentAttention::project_row(const ForwardBatch& batch, const float* x, float* row) const {
  kv_a_proj_.forward(batch, x, batch.num_tokens(), row);
  RmsNormArgs norm;
  norm.x = norm.y = row;
  norm.x_stride = norm.y_stride = row_elements();
  norm.rows = batch.num_tokens();
  norm.cols = config_.kv_lora_rank;
  norm.weight = kv_a_norm_.weight();
  norm.eps = kv_a_norm_.eps();
  rms_norm()(norm, batch);
}

// `q` [T, H, row_elements] and `row` [T, row_elements]: the last qk_rope_head_dim elements turn.
void LatentAttention::rotate(const ForwardBatch& batch, float* q, float* row) const {
  const int64_t rank = config_.kv_lora_rank, width = row_elements();
  rotation_.forward(batch, {q + rank, config_.num_heads * width, config_.num_heads}, {row + rank, width, 1}, width);
}

void LatentAttention::multiply_heads(const ForwardBatch& batch, const std::vector<PackedMatrix>& weights,
                                     const float* in, int64_t in_stride, float* out, int64_t out_stride) const {
  for (int64_t h = 0; h < config_.num_heads; ++h) {
    const PackedMatrix& weight = weights[static_cast<size_t>(h)];
    GemmArgs args;
    args.a = in + h * in_stride;
    args.lda = config_.num_heads * in_stride;
    args.m = batch.num_tokens();
    args.w = &weight;
    args.c = out + h * out_stride;
    args.ldc = config_.num_heads * out_stride;
    gemm()(args, batch);
  }
}

void LatentAttention::forward(const ForwardBatch& batch, const float* x, float* y, bool accumulate) {
  COLUBER_CHECK(cache_.bound(), "layer '{}' has no cache: bind_kv_cache was not called", layer_name());
  WorkspaceScope scope(*batch.workspace);
  const int64_t tokens = batch.num_tokens(), heads = config_.num_heads, width = row_elements();
  float* q = batch.workspace->take<float>(tokens * heads * qk_head_dim());
  float* row = batch.workspace->take<float>(tokens * width);               // [T, latent | shared part]
  float* q_latent = batch.workspace->take<float>(tokens * heads * width);  // [T, H, the same]
  float* attended = batch.workspace->take<float>(tokens * heads * width);
  float* values = batch.workspace->take<float>(tokens * heads * config_.v_head_dim);
  const float* q_source = project_queries(batch, x, q);
  project_row(batch, x, row);
  multiply_heads(batch, w_uk_, q, qk_head_dim(), q_latent, width);
  if (config_.qk_rope_head_dim > 0) {
    scale()(ScaleArgs{q + config_.qk_nope_head_dim, qk_head_dim(), q_latent + config_.kv_lora_rank, width,
                      tokens * heads, config_.qk_rope_head_dim},
            batch);
  }
  rotate(batch, q_latent, row);
  cache_.store(*this, batch, row, width, nullptr, 0);
  PagedAttentionArgs args = cache_.step(*this, batch);
  args.q = q_latent;
  args.out = attended;
  args.q_stride = args.out_stride = heads * width;
  args.num_heads = heads;
  args.scale = static_cast<float>(config_.scale);
  if (selector_) args.selection = selector_->select(*this, cache_, batch, x, q_source, args);
  attend_pages(args, batch);
  multiply_heads(batch, w_uv_, attended, width, values, config_.v_head_dim);
  out_proj_.forward(batch, values, tokens, y, accumulate);
}

ExportedKeyValues LatentAttention::export_key_values(std::span<const int32_t> pages, int64_t num_tokens) const {
  const std::vector<float> rows = cache_.read(*this, pages, num_tokens, 0);
  const int64_t rank = config_.kv_lora_rank, rope = config_.qk_rope_head_dim, width = row_elements();
  if (config_.export_heads) return export_heads(rows, num_tokens);
  ExportedKeyValues out{Shape{1, num_tokens, rank}, Shape{1, num_tokens, rope}, {}, {}};
  for (int64_t t = 0; t < num_tokens; ++t) {
    const float* row = rows.data() + t * width;
    out.keys.insert(out.keys.end(), row, row + rank);
    out.values.insert(out.values.end(), row + rank, row + width);
  }
  return out;
}

ExportedKeyValues LatentAttention::export_heads(const std::vector<float>& rows, int64_t num_tokens) const {
  const int64_t heads = config_.num_heads, rank = config_.kv_lora_rank, width = row_elements();
  const int64_t nope = config_.qk_nope_head_dim, v = config_.v_head_dim;
  ExportedKeyValues out{Shape{heads, num_tokens, qk_head_dim()}, Shape{heads, num_tokens, v}, {}, {}};
  std::vector<float> weight(static_cast<size_t>(std::max(nope, rank)));
  auto dot = [&](const float* row) {
    double sum = 0;
    for (int64_t r = 0; r < rank; ++r) sum += static_cast<double>(weight[static_cast<size_t>(r)]) * row[r];
    return static_cast<float>(sum);
  };
  out.keys.resize(static_cast<size_t>(heads * num_tokens * qk_head_dim()));
  out.values.resize(static_cast<size_t>(heads * num_tokens * v));
  for (int64_t h = 0; h < heads; ++h) {
    float* keys = out.keys.data() + h * num_tokens * qk_head_dim();
    for (int64_t r = 0; r < rank; ++r) {
      w_uk_[static_cast<size_t>(h)].unpack_row(r, weight.data());  // [nope]
      for (int64_t t = 0; t < num_tokens; ++t) {
        for (int64_t d = 0; d < nope; ++d)
          keys[t * qk_head_dim() + d] += weight[static_cast<size_t>(d)] * rows[static_cast<size_t>(t * width + r)];
      }
    }
    for (int64_t t = 0; t < num_tokens; ++t)
      std::copy_n(rows.data() + t * width + rank, config_.qk_rope_head_dim, keys + t * qk_head_dim() + nope);
    for (int64_t d = 0; d < v; ++d) {
      w_uv_[static_cast<size_t>(h)].unpack_row(d, weight.data());  // [rank]
      for (int64_t t = 0; t < num_tokens; ++t)
        out.values[static_cast<size_t>((h * num_tokens + t) * v + d)] = dot(rows.data() + t * width);
    }
  }
  return out;
}

}  // namespace coluber
