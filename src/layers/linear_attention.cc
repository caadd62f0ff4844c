// SPDX-License-Identifier: Apache-2.0
#include "layers/linear_attention.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "cache/state_shape.h"
#include "kernels/linear/lightning_attention.h"
#include "kernels/linear/silu.h"
#include "kernels/norm/norm.h"
#include "layers/recurrent_layer.h"
#include "tensor/workspace.h"

namespace coluber {
namespace {

LinearAttentionConfig checked(const LinearAttentionConfig& config, const WeightLoader& loader) {
  SizeChecks checks;
  checks.expect_positive("hidden size", config.hidden_size);
  checks.expect_positive("heads", config.num_heads);
  checks.expect_between("head dim", config.head_dim, 1, kMaxLightningHeadDim);
  checks.expect(config.layer >= 0 && config.layer < config.num_layers,
                fmt::format("layer: expected 0 to {}, found {}", config.num_layers - 1, config.layer));
  checks.expect(config.norm_eps > 0.0, fmt::format("norm epsilon: expected above 0, found {}", config.norm_eps));
  checks.finish("linear attention", loader);
  return config;
}

void check_rows(const LinearAttention& layer, const LinearAttentionMetadata& metadata, int64_t num_tokens) {
  const auto rows = static_cast<size_t>(metadata.num_decodes + metadata.num_prefills);
  COLUBER_CHECK(metadata.num_decode_tokens == metadata.num_decodes,
                "layer '{}': {} decode rows with {} tokens, expected one token a row", layer.layer_name(),
                metadata.num_decodes, metadata.num_decode_tokens);
  COLUBER_CHECK(metadata.query_start_loc.size() > rows && metadata.seq_lens.size() >= rows &&
                    metadata.state_indices_tensor.size() >= rows,
                "layer '{}': {} rows, {} starts, {} lengths, {} state indices", layer.layer_name(), rows,
                metadata.query_start_loc.size(), metadata.seq_lens.size(), metadata.state_indices_tensor.size());
  COLUBER_CHECK(metadata.query_start_loc[rows] <= num_tokens, "layer '{}': {} tokens of rows in a batch of {}",
                layer.layer_name(), metadata.query_start_loc[rows], num_tokens);
}

}  // namespace

std::vector<float> lightning_slopes(int64_t num_heads, int64_t layer, int64_t num_layers) {
  const double factor = 1.0 - static_cast<double>(layer) / (static_cast<double>(num_layers - 1) + 1e-5) + 1e-5;
  std::vector<float> slopes;
  for (int64_t h = 0; h < num_heads; ++h) {
    const double rate = std::exp2(-8.0 * static_cast<double>(h + 1) / static_cast<double>(num_heads));
    slopes.push_back(static_cast<float>(rate * factor));
  }
  return slopes;
}

LinearAttention::LinearAttention(const LinearAttentionConfig& config, WeightLoader loader)
    : MambaBase(layer_name_of(loader)),
      config_(checked(config, loader)),
      engine_config_(loader.config()),
      qkv_proj_(loader, "qkv_proj", config_.hidden_size, 3 * config_.num_heads * config_.head_dim, false),
      output_gate_(loader, "output_gate", config_.hidden_size, config_.num_heads * config_.head_dim, false),
      out_proj_(loader, "out_proj", config_.num_heads * config_.head_dim, config_.hidden_size, false),
      norm_weight_(loader.take_float("norm.weight", Shape{config_.num_heads * config_.head_dim})),
      slopes_(lightning_slopes(config_.num_heads, config_.layer, config_.num_layers)) {
  for (const char* buffer : {"slope_rate", "query_decay", "key_decay", "diagonal_decay"}) {
    if (loader.has(buffer)) loader.ignore(buffer, "decay tables of lightning attention, computed instead");
  }
  loader.config().register_layer(*this);
}

std::vector<Shape> LinearAttention::get_state_shape() const {
  return linear_attention_state_shape(engine_config_.parallel.tensor_parallel_size, config_.num_heads,
                                      config_.head_dim);
}

std::vector<DType> LinearAttention::get_state_dtype() const { return {linear_attention_state_dtype(engine_config_)}; }

void LinearAttention::attend(const ForwardBatch& batch, const float* qkv, float* out) const {
  const auto& metadata = batch.metadata<LinearAttentionMetadata>(*this);
  const int64_t decodes = metadata.num_decodes, rows = decodes + metadata.num_prefills;
  uint8_t* has_initial_state = batch.workspace->take<uint8_t>(rows);
  for (int64_t r = 0; r < rows; ++r) {
    const auto i = static_cast<size_t>(r);
    has_initial_state[r] = metadata.seq_lens[i] > metadata.query_start_loc[i + 1] - metadata.query_start_loc[i];
  }
  LightningAttentionArgs args;
  args.q = qkv;
  args.k = qkv + config_.head_dim;
  args.v = qkv + 2 * config_.head_dim;
  args.token_stride = qkv_proj_.out_features();
  args.head_stride = 3 * config_.head_dim;
  args.slopes = slopes_.data();
  args.o = out;
  args.o_stride = config_.num_heads * config_.head_dim;
  args.num_heads = config_.num_heads;
  args.head_dim = config_.head_dim;
  const TensorView& state = kv_cache()[0];
  args.state.base = state.data;
  args.state.dtype = state.dtype;
  args.state.slot_stride_bytes = state.strides[0] * dtype_size(state.dtype);
  args.state.src = args.state.dst = metadata.state_indices_tensor.data();
  args.state.has_initial_state = has_initial_state;
  if (decodes > 0) {
    args.rows = decodes;
    lightning_attention_update()(args, *batch.thread_pool, *batch.workspace);
  }
  if (metadata.num_prefills > 0) {
    // The starts are not rebased: q, k, v and o stay where they are.
    args.rows = metadata.num_prefills;
    args.query_start_loc = metadata.query_start_loc.data() + decodes;
    args.state.src = args.state.dst = metadata.state_indices_tensor.data() + decodes;
    args.state.has_initial_state = has_initial_state + decodes;
    lightning_attention()(args, *batch.thread_pool, *batch.workspace);
  }
}

void LinearAttention::forward(const ForwardBatch& batch, const float* x, float* y, bool accumulate) {
  const int64_t tokens = batch.num_tokens(), inner = config_.num_heads * config_.head_dim;
  const auto& metadata = batch.metadata<LinearAttentionMetadata>(*this);
  check_bound(*this, {inner * config_.head_dim});
  check_rows(*this, metadata, tokens);
  WorkspaceScope scope(*batch.workspace);
  float* qkv = batch.workspace->take<float>(tokens * 3 * inner);
  float* gate = batch.workspace->take<float>(tokens * inner);
  float* out = batch.workspace->take<float>(tokens * inner);
  qkv_proj_.forward(batch, x, tokens, qkv);
  output_gate_.forward(batch, x, tokens, gate);
  silu()(SiluArgs{qkv, qkv, tokens * 3 * inner}, *batch.thread_pool);
  // Tokens that pad the batch have no row: nothing else writes theirs.
  const int64_t computed = metadata.query_start_loc[static_cast<size_t>(metadata.num_decodes + metadata.num_prefills)];
  std::fill(out + computed * inner, out + tokens * inner, 0.0f);
  attend(batch, qkv, out);
  GatedRmsNormArgs norm;
  norm.norm.x = norm.norm.y = out;
  norm.norm.x_stride = norm.norm.y_stride = norm.norm.cols = inner;
  norm.norm.rows = tokens;
  norm.norm.weight = norm_weight_.data();
  norm.norm.eps = static_cast<float>(config_.norm_eps);
  norm.z = gate;
  norm.z_stride = inner;
  norm.gate = Gate::kSigmoid;
  rms_norm_then_gate()(norm, *batch.thread_pool);
  out_proj_.forward(batch, out, tokens, y, accumulate);
}

}  // namespace coluber
