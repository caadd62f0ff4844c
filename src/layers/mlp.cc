// SPDX-License-Identifier: Apache-2.0
#include "layers/mlp.h"

#include "base/error.h"
#include "kernels/moe/silu_mul.h"
#include "tensor/workspace.h"

namespace coluber {
namespace {

GatedMlpConfig checked(const GatedMlpConfig& config, const WeightLoader& loader) {
  if (config.hidden_size < 1 || config.intermediate_size < 1) {
    throw make_error(ErrorCode::kInvalidConfig,
                     "MLP '{}': expected positive sizes, found a hidden size of {} and an intermediate size of {}",
                     loader.full_name(config.gate), config.hidden_size, config.intermediate_size);
  }
  return config;
}

}  // namespace

GatedMlp::GatedMlp(const GatedMlpConfig& config, WeightLoader& loader)
    : config_(checked(config, loader)),
      gate_(loader, config_.gate, config_.hidden_size, config_.intermediate_size, config_.bias),
      up_(loader, config_.up, config_.hidden_size, config_.intermediate_size, config_.bias),
      down_(loader, config_.down, config_.intermediate_size, config_.hidden_size, config_.bias) {}

void GatedMlp::forward(const ForwardBatch& batch, const float* x, float* y, bool accumulate) {
  WorkspaceScope scope(*batch.workspace);
  const int64_t tokens = batch.num_tokens();
  float* gate = batch.workspace->take<float>(tokens * config_.intermediate_size);
  float* up = batch.workspace->take<float>(tokens * config_.intermediate_size);
  gate_.forward(batch, x, tokens, gate);
  up_.forward(batch, x, tokens, up);
  silu_mul()(SiluMulArgs{gate, up, gate, tokens * config_.intermediate_size}, *batch.thread_pool);
  down_.forward(batch, gate, tokens, y, accumulate);
}

}  // namespace coluber
