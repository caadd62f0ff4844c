// SPDX-License-Identifier: Apache-2.0
#include "layers/mlp.h"

#include "base/error.h"
#include "kernels/elementwise/scale.h"
#include "tensor/workspace.h"

namespace coluber {
namespace {

MlpConfig checked(const MlpConfig& config, const WeightLoader& loader) {
  if (config.hidden_size < 1 || config.intermediate_size < 1) {
    throw make_error(ErrorCode::kInvalidConfig,
                     "MLP '{}': expected positive sizes, found a hidden size of {} and an intermediate size of {}",
                     loader.full_name(config.down), config.hidden_size, config.intermediate_size);
  }
  return config;
}

}  // namespace

Mlp::Mlp(const MlpConfig& config, WeightLoader loader)
    : config_(checked(config, loader)),
      down_(loader, config_.down, config_.intermediate_size, config_.hidden_size, config_.bias) {
  const int64_t inner = config_.intermediate_size;
  if (fused()) {
    gate_.emplace(loader, config_.gate_up, config_.hidden_size, 2 * inner, config_.bias);
    return;
  }
  if (gated()) gate_.emplace(loader, config_.gate, config_.hidden_size, inner, config_.bias);
  up_.emplace(loader, config_.up, config_.hidden_size, inner, config_.bias);
}

void Mlp::forward(const ForwardBatch& batch, const float* x, float* y, bool accumulate) const {
  WorkspaceScope scope(*batch.workspace);
  const int64_t tokens = batch.num_tokens(), inner = config_.intermediate_size;
  ActivateArgs args;
  args.activation = config_.activation;
  args.limit = config_.limit;
  args.gate_scale = static_cast<float>(config_.gate_multiplier);
  args.rows = tokens;
  args.cols = inner;
  const int64_t width = fused() ? 2 * inner : inner;
  float* first = batch.workspace->take<float>(tokens * width);
  (gate_ ? *gate_ : *up_).forward(batch, x, tokens, first);
  args.gate = first;
  args.gate_stride = width;
  if (fused()) {
    args.gate = first + (config_.up_first ? inner : 0);
    args.up = first + (config_.up_first ? 0 : inner);
    args.up_stride = width;
  } else if (gated()) {
    float* up = batch.workspace->take<float>(tokens * inner);
    up_->forward(batch, x, tokens, up);
    args.up = up;
    args.up_stride = inner;
  }
  args.out = first;
  args.out_stride = width;
  activate()(args, batch);
  if (config_.down_multiplier == 1)
    return down_.forward(batch, first, width, tokens, y, config_.hidden_size, accumulate);
  // The product's bias is multiplied too.
  const int64_t size = tokens * config_.hidden_size;
  float* out = batch.workspace->take<float>(size);
  down_.forward(batch, first, width, tokens, out, config_.hidden_size);
  ScaleArgs scaled{out, config_.hidden_size, y, config_.hidden_size, tokens, config_.hidden_size};
  scaled.factor = static_cast<float>(config_.down_multiplier);
  scaled.accumulate = accumulate;
  scale()(scaled, batch);
}

}  // namespace coluber
