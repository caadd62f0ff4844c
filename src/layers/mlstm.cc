// SPDX-License-Identifier: Apache-2.0
#include "layers/mlstm.h"

#include "base/error.h"
#include "cache/state_shape.h"
#include "kernels/wkv/mlstm.h"
#include "kernels/wkv/time_mix.h"
#include "layers/recurrent_step.h"
#include "tensor/workspace.h"

namespace coluber {
namespace {

const RegisterRecurrentBackend kBackend("mlstm");

MlstmConfig checked(const MlstmConfig& config, const WeightLoader& loader) {
  SizeChecks checks;
  checks.expect_positive("hidden size", config.hidden_size);
  checks.expect_positive("heads", config.num_heads);
  for (const auto& [what, width] :
       {std::pair("query and key width", config.qk_dim), std::pair("value width", config.v_dim)}) {
    checks.expect_positive(what, width);
    checks.expect(config.num_heads > 0 && width % config.num_heads == 0,
                  fmt::format("{}: expected a multiple of the {} heads, found {}", what, config.num_heads, width));
  }
  if (config.num_heads > 0) checks.expect_between("key size", config.qk_dim / config.num_heads, 1, kMaxMlstmKeyDim);
  checks.expect(config.gate_soft_cap >= 0.0,
                fmt::format("gate soft cap: expected at least 0, found {}", config.gate_soft_cap));
  checks.finish("mLSTM", loader);
  return config;
}

// Each product writes its columns of one row of `width`.
void project(const ForwardBatch& batch, const std::vector<Linear>& products, const float* x, float* y, int64_t width) {
  int64_t column = 0;
  for (const Linear& product : products) {
    product.forward(batch, x, product.in_features(), batch.num_tokens(), y + column, width);
    column += product.out_features();
  }
}

}  // namespace

Mlstm::Mlstm(const MlstmConfig& config, WeightLoader loader)
    : MambaBase(layer_name_of(loader)),
      config_(checked(config, loader)),
      engine_config_(loader.config()),
      out_proj_(loader, "out_proj", config_.v_dim, config_.hidden_size, config_.use_bias),
      norm_weight_(loader.take_float("multihead_norm.weight", Shape{config_.v_dim})) {
  const int64_t hidden = config_.hidden_size;
  const auto add = [&](std::vector<Linear>& to, const char* name, int64_t width, bool bias) {
    to.emplace_back(loader, name, hidden, width, bias);
  };
  if (config_.fused) {
    add(qkvo_, "qkv_opreact", qkvo_width(), config_.use_bias);
    add(gates_, "ifgate_preact", 2 * config_.num_heads, true);
  } else {
    add(qkvo_, "q", config_.qk_dim, config_.use_bias);
    add(qkvo_, "k", config_.qk_dim, config_.use_bias);
    add(qkvo_, "v", config_.v_dim, config_.use_bias);
    add(qkvo_, "ogate_preact", config_.v_dim, config_.use_bias);
    add(gates_, "igate_preact", config_.num_heads, true);
    add(gates_, "fgate_preact", config_.num_heads, true);
  }
  if (config_.use_bias) norm_bias_ = loader.take_float("multihead_norm.bias", Shape{config_.v_dim});
  loader.config().register_layer(*this);
}

std::vector<Shape> Mlstm::get_state_shape() const {
  return with_state_scales(std::vector{Shape{config_.num_heads, key_dim(), value_dim()},
                                       Shape{config_.num_heads, key_dim()}, Shape{config_.num_heads, 1}},
                           get_state_dtype());
}

std::vector<DType> Mlstm::get_state_dtype() const {
  return with_state_scales({recurrent_state_dtype(engine_config_), DType::kFloat32, DType::kFloat32});
}

void Mlstm::recall(const ForwardBatch& batch, const float* qkvo, const float* gates, float* out) const {
  const int64_t heads = config_.num_heads, inner = config_.v_dim;
  const RecurrentStep step(*this, batch, {config_.qk_dim * value_dim(), config_.qk_dim, heads});
  step.zero_padding(out, inner);
  step.each([&](const RecurrentRows& rows) {
    MlstmArgs args;
    args.q = qkvo + rows.first_token * qkvo_width();
    args.k = args.q + config_.qk_dim;
    args.v = args.k + config_.qk_dim;
    args.qkv_stride = qkvo_width();
    args.i = gates + rows.first_token * 2 * heads;
    args.f = args.i + heads;
    args.gate_stride = 2 * heads;
    args.soft_cap = static_cast<float>(config_.gate_soft_cap);
    args.eps = static_cast<float>(config_.eps);
    args.y = out + rows.first_token * inner;
    const StagedState c = step.stage(rows, 0);
    args.c = c.slots();
    args.n = step.slots(rows, 1);
    args.m = step.slots(rows, 2);
    args.c_exports = c.exports();
    args.nm_exports = step.exports(rows);
    args.query_start_loc = rows.query_start_loc;
    args.rows = rows.rows;
    args.tokens = rows.query_start_loc == nullptr ? rows.rows : rows.query_start_loc[rows.rows];
    args.num_heads = heads;
    args.key_dim = key_dim();
    args.value_dim = value_dim();
    mlstm()(args, batch);
    c.write_back();
  });
}

void Mlstm::forward(const ForwardBatch& batch, const float* x, float* y, bool accumulate) const {
  const int64_t tokens = batch.num_tokens(), inner = config_.v_dim;
  WorkspaceScope scope(*batch.workspace);
  float* qkvo = batch.workspace->take<float>(tokens * qkvo_width());
  float* gates = batch.workspace->take<float>(tokens * 2 * config_.num_heads);
  float* out = batch.workspace->take<float>(tokens * inner);
  project(batch, qkvo_, x, qkvo, qkvo_width());
  project(batch, gates_, x, gates, 2 * config_.num_heads);
  recall(batch, qkvo, gates, out);
  HeadNormArgs norm;
  norm.x = norm.y = out;
  norm.weight = norm_weight_.data();
  norm.bias = norm_bias_.empty() ? nullptr : norm_bias_.data();
  norm.eps = static_cast<float>(config_.norm_eps);
  norm.gate = qkvo + 2 * config_.qk_dim + inner;
  norm.gate_stride = qkvo_width();
  norm.gate_kind = HeadGate::kSigmoid;
  norm.tokens = tokens;
  norm.num_heads = config_.num_heads;
  norm.head_dim = value_dim();
  head_norm()(norm, batch);
  out_proj_.forward(batch, out, tokens, y, accumulate);
}

}  // namespace coluber
