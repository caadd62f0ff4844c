// SPDX-License-Identifier: Apache-2.0
//
// One step of the linear-attention backend as the kernels read it: rows of one token first, then the others, each with
// its slot and whether it has a state yet. Shared by the layers whose metadata is LinearAttentionMetadata; knows
// nothing of what is computed. Lives while one forward runs, in that forward's workspace scope.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "coluber/linear_attention.h"
#include "coluber/mamba_base.h"
#include "coluber/model.h"
#include "kernels/conv/causal_conv1d.h"
#include "kernels/linear/gated_linear_attention.h"

namespace coluber {

class LinearAttentionStep {
 public:
  // Throws Error(kInternal) where the layer has no cache, its states are not whole on this rank (`state_elements`: of
  // each state), or the metadata's rows do not fit the batch.
  LinearAttentionStep(const MambaBase& layer, const ForwardBatch& batch, std::initializer_list<int64_t> state_elements);

  // `state` is the place in the layer's cache. The arguments say everything but state, rows and starts. Tokens that pad
  // the batch get zeros.
  void attend(GatedLinearAttentionArgs args, size_t state) const;
  void convolve(CausalConv1dArgs args, size_t state) const;

 private:
  StateSlots slots(size_t state, int64_t first_row) const;
  const int32_t* starts(int64_t first_row) const;
  void zero_padding(float* rows, int64_t width) const;

  const MambaBase& layer_;
  const ForwardBatch& batch_;
  const LinearAttentionMetadata& metadata_;
};

}  // namespace coluber
