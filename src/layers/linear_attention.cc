// SPDX-License-Identifier: Apache-2.0
#include "layers/linear_attention.h"

#include <cmath>

#include "base/error.h"
#include "cache/state_shape.h"
#include "kernels/linear/silu.h"
#include "kernels/norm/norm.h"
#include "layers/linear_attention_step.h"
#include "layers/recurrent_layer.h"
#include "tensor/workspace.h"

namespace coluber {
namespace {

LinearAttentionConfig checked(LinearAttentionConfig config, const WeightLoader& loader) {
  SizeChecks checks;
  checks.expect_positive("hidden size", config.hidden_size);
  checks.expect_positive("heads", config.num_heads);
  checks.expect_between("head dim", config.head_dim, 1, kMaxLinearKeyDim);
  checks.expect(config.layer >= 0 && config.layer < config.num_layers,
                fmt::format("layer: expected 0 to {}, found {}", config.num_layers - 1, config.layer));
  checks.expect(config.norm_eps > 0.0, fmt::format("norm epsilon: expected above 0, found {}", config.norm_eps));
  checks.expect(config.norm_groups > 0 && config.num_heads * config.head_dim % config.norm_groups == 0,
                fmt::format("norm groups: expected a divisor of {}, found {}", config.num_heads * config.head_dim,
                            config.norm_groups));
  checks.expect(!config.qkv_by_head || (!config.qk_norm && !config.rope),
                "queries and keys that lie head by head are neither normed nor rotated");
  checks.finish("linear attention", loader);
  return config;
}

// 2^(-8 (i + 1) / n) for the largest power of two below, then every second of those for twice as many.
std::vector<double> alibi_rates(int64_t num_heads) {
  std::vector<double> rates;
  int64_t power = 1;
  while (2 * power <= num_heads) power *= 2;
  const auto rate = [](int64_t i, int64_t n) {
    return std::exp2(-8.0 * static_cast<double>(i + 1) / static_cast<double>(n));
  };
  for (int64_t h = 0; h < power; ++h) rates.push_back(rate(h, power));
  for (int64_t h = 0; h < num_heads - power; ++h) rates.push_back(rate(2 * h, 2 * power));
  return rates;
}

std::vector<Linear> take_qkv(const LinearAttentionConfig& config, WeightLoader& loader) {
  const int64_t inner = config.num_heads * config.head_dim;
  std::vector<Linear> parts;
  if (config.qkv_by_head) {
    parts.emplace_back(loader, config.qkv_proj, config.hidden_size, 3 * inner, config.qkv_bias);
    return parts;
  }
  const TensorView weight = loader.take(config.qkv_proj + ".weight", Shape{3 * inner, config.hidden_size});
  std::vector<float> bias;
  if (config.qkv_bias) bias = loader.read_float(config.qkv_proj + ".bias", Shape{3 * inner});
  for (int64_t part = 0; part < 3; ++part) {
    std::vector<float> own;
    if (config.qkv_bias) own.assign(bias.begin() + part * inner, bias.begin() + (part + 1) * inner);
    parts.emplace_back(loader, weight_rows(weight, part * inner, inner), std::move(own));
  }
  return parts;
}

}  // namespace

std::vector<float> lightning_slopes(int64_t num_heads, int64_t layer, int64_t num_layers, LightningSlopes kind) {
  const auto place = static_cast<double>(layer), last = static_cast<double>(num_layers - 1);
  std::vector<float> slopes;
  if (kind == LightningSlopes::kAlibi) {
    const double factor = 1.0 - (num_layers > 1 ? place / last : 0.0) + 1e-5;
    for (double rate : alibi_rates(num_heads)) slopes.push_back(static_cast<float>(rate * factor));
    return slopes;
  }
  const double factor = 1.0 - place / (last + 1e-5) + 1e-5;
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
      rotation_(config_.rope, config_.head_dim, loader),
      qkv_(take_qkv(config_, loader)),
      output_gate_(loader, config_.output_gate, config_.hidden_size, inner(), false),
      out_proj_(loader, config_.out_proj, inner(), config_.hidden_size, config_.out_bias),
      norm_weight_(loader.take_array(config_.norm + ".weight", Shape{inner()})),
      slopes_(loader.place(lightning_slopes(config_.num_heads, config_.layer, config_.num_layers, config_.slopes))) {
  if (config_.qk_norm) {
    q_norm_.emplace(loader, config_.q_norm, config_.head_dim, config_.norm_eps);
    k_norm_.emplace(loader, config_.k_norm, config_.head_dim, config_.norm_eps);
  }
  for (const char* buffer : {"slope_rate", "query_decay", "key_decay", "diagonal_decay", "slope"}) {
    if (loader.has(buffer)) loader.ignore(buffer, "decay tables of lightning attention, computed instead");
  }
  loader.config().register_layer(*this);
}

std::vector<Shape> LinearAttention::get_state_shape() const {
  const int64_t ranks = engine_config_.parallel.tensor_parallel_size;
  expect_even_shares(*this, "linear attention heads", config_.num_heads, ranks);
  return with_state_scales(linear_attention_state_shape(ranks, config_.num_heads, config_.head_dim), get_state_dtype());
}

std::vector<DType> LinearAttention::get_state_dtype() const {
  return with_state_scales({linear_attention_state_dtype(engine_config_)});
}

// By head: [T, H, 3, D]; else [3, T, H, D].
void LinearAttention::project(const ForwardBatch& batch, const float* x, float* qkv) const {
  const int64_t tokens = batch.num_tokens(), part = tokens * inner();
  for (size_t i = 0; i < qkv_.size(); ++i) qkv_[i].forward(batch, x, tokens, qkv + static_cast<int64_t>(i) * part);
  if (config_.silu) silu()(SiluArgs{qkv, qkv, 3 * part}, batch);
  if (q_norm_) {
    q_norm_->forward(batch, qkv, tokens * config_.num_heads, qkv);
    k_norm_->forward(batch, qkv + part, tokens * config_.num_heads, qkv + part);
  }
  rotation_.forward(batch, {qkv, inner(), config_.num_heads}, {qkv + part, inner(), config_.num_heads},
                    config_.head_dim);
}

void LinearAttention::finish(const ForwardBatch& batch, const float* gate, float* out) const {
  GatedRmsNormArgs norm;
  norm.norm.x = norm.norm.y = out;
  norm.norm.x_stride = norm.norm.y_stride = norm.norm.cols = inner();
  norm.norm.rows = batch.num_tokens();
  norm.norm.weight = norm_weight_.data();
  norm.norm.eps = static_cast<float>(config_.norm_eps);
  norm.z = gate;
  norm.z_stride = inner();
  norm.groups = config_.norm_groups;
  norm.gate = Gate::kSigmoid;
  rms_norm_then_gate()(norm, batch);
}

void LinearAttention::forward(const ForwardBatch& batch, const float* x, float* y, bool accumulate) {
  const int64_t tokens = batch.num_tokens();
  WorkspaceScope scope(*batch.workspace);
  const LinearAttentionStep step(*this, batch, {inner() * config_.head_dim});
  float* qkv = batch.workspace->take<float>(tokens * 3 * inner());
  float* gate = batch.workspace->take<float>(tokens * inner());
  float* out = batch.workspace->take<float>(tokens * inner());
  project(batch, x, qkv);
  output_gate_.forward(batch, x, tokens, gate);
  const int64_t part = config_.qkv_by_head ? config_.head_dim : tokens * inner();
  GatedLinearAttentionArgs args;
  args.q = qkv;
  args.k = qkv + part;
  args.v = qkv + 2 * part;
  args.q_stride = args.k_stride = args.v_stride = config_.qkv_by_head ? 3 * inner() : inner();
  args.q_head_stride = args.k_head_stride = args.v_head_stride = (config_.qkv_by_head ? 3 : 1) * config_.head_dim;
  args.slopes = slopes_.data();
  args.scale = static_cast<float>(config_.scale);
  args.o = out;
  args.o_stride = inner();
  args.num_heads = config_.num_heads;
  args.key_dim = args.value_dim = config_.head_dim;
  step.attend(args, 0);
  finish(batch, gate, out);
  out_proj_.forward(batch, out, tokens, y, accumulate);
}

}  // namespace coluber
