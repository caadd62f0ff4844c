// SPDX-License-Identifier: Apache-2.0
#include "layers/moe.h"

#include "base/error.h"
#include "coluber/config.h"
#include "kernels/gemm/gemm.h"
#include "tensor/workspace.h"

namespace coluber {
namespace {

MoeConfig checked(const MoeConfig& config, const WeightLoader& loader) {
  std::string problems;
  auto expect = [&](bool fine, const std::string& message) {
    if (!fine) problems += "\n  " + message;
  };
  expect(config.hidden_size > 0, fmt::format("hidden size: expected a positive number, found {}", config.hidden_size));
  expect(config.intermediate_size > 0,
         fmt::format("intermediate size: expected a positive number, found {}", config.intermediate_size));
  expect(config.num_experts > 0, fmt::format("experts: expected a positive number, found {}", config.num_experts));
  expect(config.top_k > 0 && config.top_k <= config.num_experts,
         fmt::format("experts of a token: expected 1 to {}, found {}", config.num_experts, config.top_k));
  if (!problems.empty()) {
    throw make_error(ErrorCode::kInvalidConfig, "experts '{}':{}", loader.full_name(config.experts), problems);
  }
  return config;
}

}  // namespace

MoeBlock::MoeBlock(const MoeConfig& config, WeightLoader& loader)
    : config_(checked(config, loader)),
      gate_(loader, config_.gate, config_.hidden_size, config_.num_experts, false),
      allow_bf16_(loader.config().allow_bf16_products && bf16_products_pay()) {
  const Shape inner{config_.intermediate_size, config_.hidden_size},
      outer{config_.hidden_size, config_.intermediate_size};
  int64_t bytes = 0;  // of all experts, as pack_weight counts them
  auto pack = [&](int64_t expert, const std::string& name, const Shape& shape) {
    const TensorView weight = loader.take(fmt::format("{}.{}.{}.weight", config_.experts, expert, name), shape);
    const bool direct =
        weight.dtype == DType::kFloat32 || weight.dtype == DType::kBFloat16 || weight.dtype == DType::kFloat16;
    bytes += dtype_bytes(direct ? weight.dtype : DType::kFloat32, shape.count());
    return pack_weight(loader, weight);
  };
  for (int64_t e = 0; e < config_.num_experts; ++e) {
    experts_.push_back({pack(e, config_.w1, inner), pack(e, config_.w3, inner), pack(e, config_.w2, outer)});
  }
  // pack_weight has counted all experts; a token meets top_k of them, and a one-token step reads no others.
  const int64_t idle = config_.num_experts - config_.top_k;
  loader.count_matmul(-idle * 3 * inner.count(), -(bytes / config_.num_experts * idle));
}

void MoeBlock::forward(const ForwardBatch& batch, const float* x, float* y, bool accumulate) {
  WorkspaceScope scope(*batch.workspace);
  const int64_t tokens = batch.num_tokens();
  float* logits = batch.workspace->take<float>(tokens * config_.num_experts);
  int32_t* ids = batch.workspace->take<int32_t>(tokens * config_.top_k);
  float* weights = batch.workspace->take<float>(tokens * config_.top_k);
  gate_.forward(batch, x, tokens, logits);
  route_top_k({logits, tokens, config_.num_experts, config_.top_k, config_.renormalize, ids, weights},
              *batch.thread_pool);
  run_experts({x, y, tokens, experts_, ids, weights, config_.top_k, accumulate, allow_bf16_}, *batch.thread_pool,
              *batch.workspace);
}

}  // namespace coluber
