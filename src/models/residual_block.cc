// SPDX-License-Identifier: Apache-2.0
#include "models/residual_block.h"

#include "base/error.h"
#include "kernels/elementwise/scale.h"
#include "tensor/workspace.h"

namespace coluber {
void ResidualBlock::add_branch(std::vector<LayerInfo> infos, BranchMultipliers multipliers, Run run) {
  COLUBER_CHECK(!halves_.empty(), "a layer is added before a half was begun");
  halves_.back().branches.push_back({std::move(infos), multipliers, std::move(run)});
}

void ResidualBlock::describe(std::vector<LayerInfo>& layers) const {
  for (const Half& half : halves_)
    for (const Branch& branch : half.branches) layers.insert(layers.end(), branch.infos.begin(), branch.infos.end());
}

void ResidualBlock::run_branch(const ForwardBatch& batch, const Branch& branch, const float* normed, float* x) const {
  const int64_t tokens = batch.num_tokens(), size = tokens * hidden_size_;
  WorkspaceScope scope(*batch.workspace);
  const float* in = normed;
  if (branch.multipliers.in != 1) {
    float* scaled = batch.workspace->take<float>(size);
    scale()(ScaleArgs{normed, hidden_size_, scaled, hidden_size_, tokens, hidden_size_,
                      static_cast<float>(branch.multipliers.in)},
            batch);
    in = scaled;
  }
  if (branch.multipliers.out == 1) {
    branch.run(batch, in, x, /*accumulate=*/true);
    return;
  }
  float* y = batch.workspace->take<float>(size);
  branch.run(batch, in, y, /*accumulate=*/false);
  ScaleArgs sum{y, hidden_size_, x, hidden_size_, tokens, hidden_size_, static_cast<float>(branch.multipliers.out)};
  sum.accumulate = true;
  scale()(sum, batch);
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
