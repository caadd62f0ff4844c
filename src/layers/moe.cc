// SPDX-License-Identifier: Apache-2.0
#include "layers/moe.h"

#include <algorithm>

#include "base/block_type.h"
#include "base/dtype.h"
#include "base/error.h"
#include "coluber/config.h"
#include "kernels/elementwise/scale.h"
#include "layers/linear.h"
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
  expect(config.num_groups > 0 && config.num_experts % std::max<int64_t>(config.num_groups, 1) == 0,
         fmt::format("groups of experts: expected a divisor of {}, found {}", config.num_experts, config.num_groups));
  expect(config.topk_groups > 0 && config.topk_groups <= config.num_groups,
         fmt::format("groups of a token: expected 1 to {}, found {}", config.num_groups, config.topk_groups));
  if (problems.empty()) {
    const int64_t reachable = config.num_experts / config.num_groups * config.topk_groups;
    expect(config.top_k <= reachable,
           fmt::format("experts of a token: expected at most the {} of its groups, found {}", reachable, config.top_k));
  }
  if (!problems.empty()) {
    throw make_error(ErrorCode::kInvalidConfig, "experts '{}':{}", loader.full_name(config.experts), problems);
  }
  return config;
}

// Packs weights and counts their bytes as pack_weight does.
class Packer {
 public:
  explicit Packer(WeightLoader& loader) : loader_(loader) {}

  PackedMatrix pack(const TensorView& weight) {
    const bool direct = weight.dtype == DType::kFloat32 || weight.dtype == DType::kBFloat16 ||
                        weight.dtype == DType::kFloat16 || find_block_type(weight.dtype) != nullptr;
    parameters_ += weight.shape.count();
    bytes_ += dtype_bytes(direct ? weight.dtype : DType::kFloat32, weight.shape.count());
    return pack_weight(loader_, weight);
  }
  int64_t parameters() const noexcept { return parameters_; }
  int64_t bytes() const noexcept { return bytes_; }

 private:
  WeightLoader& loader_;
  int64_t parameters_ = 0, bytes_ = 0;
};

void add_separate(const MoeConfig& c, WeightLoader& loader, Packer& packer, std::vector<Expert>& experts) {
  const Shape inner{c.intermediate_size, c.expert_width()}, outer{c.expert_width(), c.intermediate_size};
  for (int64_t e = 0; e < c.num_experts; ++e) {
    auto take = [&](const std::string& name, const Shape& shape) {
      return packer.pack(loader.take(fmt::format("{}.{}.{}.weight", c.experts, e, name), shape));
    };
    Expert expert;
    expert.w1 = take(c.w1, inner);
    if (!c.w3.empty()) expert.w3 = take(c.w3, inner);
    expert.w2 = take(c.w2, outer);
    experts.push_back(std::move(expert));
  }
}

void add_stacked(const MoeConfig& c, WeightLoader& loader, Packer& packer, std::vector<Expert>& experts) {
  const int64_t inner = c.intermediate_size, width = c.expert_width(), first = c.w3.empty() ? inner : 2 * inner;
  const TensorView w1_w3 = loader.take(c.stacked_w1_w3, Shape{c.num_experts, first, width});
  const TensorView w2 = loader.take(c.stacked_w2, Shape{c.num_experts, width, inner});
  for (int64_t e = 0; e < c.num_experts; ++e) {
    Expert expert;
    expert.w1 = packer.pack(weight_rows(w1_w3, e * first, inner));
    if (!c.w3.empty()) expert.w3 = packer.pack(weight_rows(w1_w3, e * first + inner, inner));
    expert.w2 = packer.pack(weight_rows(w2, e * width, width));
    experts.push_back(std::move(expert));
  }
}

void add_always(const MoeConfig& c, WeightLoader loader, std::vector<Expert>& experts) {
  const int64_t inner = c.intermediate_size, width = c.expert_width();
  const TensorView w1 = loader.take(c.always_w1, Shape{c.num_always, inner, width});
  const TensorView w3 = loader.take(c.always_w3, Shape{c.num_always, inner, width});
  const TensorView w2 = loader.take(c.always_w2, Shape{c.num_always, width, inner});
  for (int64_t e = 0; e < c.num_always; ++e) {
    experts.push_back({pack_weight(loader, weight_rows(w1, e * inner, inner)),
                       pack_weight(loader, weight_rows(w3, e * inner, inner)),
                       pack_weight(loader, weight_rows(w2, e * width, width))});
  }
}

PlacedArray<ExpertOnDevice> table_of(const std::vector<Expert>& experts, Device& device) {
  std::vector<ExpertOnDevice> table;
  for (const Expert& e : experts)
    table.push_back({e.w1.data(), e.w3.data(), e.w2.data(), e.w1.dtype(), e.w3.dtype(), e.w2.dtype()});
  return {std::move(table), device};
}

}  // namespace

Experts::Experts(const MoeConfig& given, WeightLoader loader)
    : activation_(given.activation), limit_(given.limit), allow_bf16_(may_round_activations(loader)) {
  const MoeConfig config = checked(given, loader);
  Packer packer(loader);
  if (!config.stacked_w1_w3.empty() && loader.has(config.stacked_w1_w3)) {
    add_stacked(config, loader, packer, experts_);
  } else {
    add_separate(config, loader, packer, experts_);
  }
  // pack_weight has counted all experts; a token meets top_k of them, and a one-token step reads no others.
  const int64_t idle = config.num_experts - config.top_k;
  loader.count_matmul(-(packer.parameters() / config.num_experts * idle),
                      -(packer.bytes() / config.num_experts * idle));
  if (config.num_always > 0) add_always(config, loader.scoped(config.always), experts_);
  if (!loader.device().is_host() && !loader.describe_only()) on_device_ = table_of(experts_, loader.device());
}

void Experts::forward(const ForwardBatch& batch, const float* x, const int32_t* ids, const float* weights,
                      int64_t num_chosen, float* y, bool accumulate) const {
  run_experts()(ExpertsArgs{x, y, batch.num_tokens(), experts_, ids, weights, num_chosen, accumulate, allow_bf16_,
                            activation_, limit_, on_device_.data()},
                batch);
}

MoeBlock::MoeBlock(const MoeConfig& config, WeightLoader loader)
    : config_(checked(config, loader)),
      gate_(loader, config_.gate, config_.hidden_size, config_.num_experts + config_.num_always, false),
      experts_(config_, loader) {
  if (!config_.selection_bias.empty())
    selection_bias_ = loader.take_array(config_.selection_bias, Shape{config_.num_experts});
  if (config_.latent_size > 0) {
    latent_in_.emplace(loader, config_.latent_in, config_.hidden_size, config_.latent_size, config_.latent_bias);
    latent_out_.emplace(loader, config_.latent_out, config_.latent_size, config_.hidden_size, config_.latent_bias);
  }
  if (config_.shared) shared_.emplace(*config_.shared, loader.scoped(config_.shared_prefix));
  if (config_.shared && !config_.shared_gate.empty())
    shared_gate_.emplace(loader, config_.shared_gate, config_.hidden_size, 1, false);
}

void MoeBlock::forward(const ForwardBatch& batch, const float* x, float* y, bool accumulate) const {
  WorkspaceScope scope(*batch.workspace);
  const int64_t tokens = batch.num_tokens();
  if (!latent_in_) {
    route_and_run(batch, x, x, y, accumulate);
  } else {
    float* narrow = batch.workspace->take<float>(tokens * config_.latent_size);
    float* sum = batch.workspace->take<float>(tokens * config_.latent_size);
    latent_in_->forward(batch, x, tokens, narrow);
    route_and_run(batch, x, narrow, sum, false);
    latent_out_->forward(batch, sum, tokens, y, accumulate);
  }
  if (shared_) add_shared(batch, x, y);
}

void MoeBlock::route_and_run(const ForwardBatch& batch, const float* x, const float* in, float* y,
                             bool accumulate) const {
  WorkspaceScope scope(*batch.workspace);
  const int64_t tokens = batch.num_tokens(), chosen = config_.experts_a_token();
  float* logits = batch.workspace->take<float>(tokens * gate_.out_features());
  int32_t* ids = batch.workspace->take<int32_t>(tokens * chosen);
  float* weights = batch.workspace->take<float>(tokens * chosen);
  gate_.forward(batch, x, tokens, logits);
  RouterArgs args{logits, tokens, config_.num_experts, config_.top_k, config_.renormalize, ids, weights, config_.score};
  args.selection_bias = selection_bias_.data();
  args.num_groups = config_.num_groups;
  args.topk_groups = config_.topk_groups;
  args.epsilon = static_cast<float>(config_.epsilon);
  args.scale = static_cast<float>(config_.scale);
  args.num_always = config_.num_always;
  route_top_k()(args, batch);
  experts_.forward(batch, in, ids, weights, chosen, y, accumulate);
}

void MoeBlock::add_shared(const ForwardBatch& batch, const float* x, float* y) const {
  if (!shared_gate_) return shared_->forward(batch, x, y, /*accumulate=*/true);
  WorkspaceScope scope(*batch.workspace);
  const int64_t tokens = batch.num_tokens(), width = config_.hidden_size;
  float* out = batch.workspace->take<float>(tokens * width);
  float* gate = batch.workspace->take<float>(tokens);
  shared_->forward(batch, x, out);
  shared_gate_->forward(batch, x, tokens, gate);
  activate()(ActivateArgs{Activation::kSigmoid, gate, 1, nullptr, 0, gate, 1, tokens, 1}, batch);
  ScaleArgs sum{out, width, y, width, tokens, width};
  sum.row_factor = gate;
  sum.accumulate = true;
  scale()(sum, batch);
}

}  // namespace coluber
