// SPDX-License-Identifier: Apache-2.0
#include "models/residual_block.h"

#include "base/error.h"
#include "tensor/workspace.h"

namespace coluber {
namespace {

constexpr int64_t kGrain = 16384;  // elements worth handing to another thread

template <typename Body>
void for_elements(const ForwardBatch& batch, int64_t size, Body body) {
  batch.thread_pool->parallel_for(size, kGrain, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) body(i);
  });
}

}  // namespace

void ResidualBlock::add_branch(std::vector<LayerInfo> infos, BranchMultipliers multipliers, Run run) {
  COLUBER_CHECK(!halves_.empty(), "a layer is added before a half was begun");
  halves_.back().branches.push_back({std::move(infos), multipliers, std::move(run)});
}

void ResidualBlock::describe(std::vector<LayerInfo>& layers) const {
  for (const Half& half : halves_)
    for (const Branch& branch : half.branches) layers.insert(layers.end(), branch.infos.begin(), branch.infos.end());
}

void ResidualBlock::run_branch(const ForwardBatch& batch, const Branch& branch, const float* normed, float* x) const {
  const int64_t size = batch.num_tokens() * hidden_size_;
  WorkspaceScope scope(*batch.workspace);
  const float* in = normed;
  if (branch.multipliers.in != 1) {
    float* scaled = batch.workspace->take<float>(size);
    const auto factor = static_cast<float>(branch.multipliers.in);
    for_elements(batch, size, [&](int64_t i) { scaled[i] = factor * normed[i]; });
    in = scaled;
  }
  if (branch.multipliers.out == 1) {
    branch.run(batch, in, x, /*accumulate=*/true);
    return;
  }
  float* y = batch.workspace->take<float>(size);
  branch.run(batch, in, y, /*accumulate=*/false);
  const auto factor = static_cast<float>(branch.multipliers.out);
  for_elements(batch, size, [&](int64_t i) { x[i] += factor * y[i]; });
}

void ResidualBlock::forward(const ForwardBatch& batch, const DecoderStream& stream) {
  const int64_t tokens = batch.num_tokens();
  WorkspaceScope scope(*batch.workspace);
  float* normed = batch.workspace->take<float>(tokens * hidden_size_);  // [T, D]
  for (const Half& half : halves_) {
    std::visit([&](const auto& norm) { norm.forward(batch, stream.x, tokens, normed); }, half.norm);
    for (const Branch& branch : half.branches) run_branch(batch, branch, normed, stream.x);
  }
}

}  // namespace coluber
