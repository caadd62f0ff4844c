// SPDX-License-Identifier: Apache-2.0
//
// One step of a layer that computes the delta rule (Gated DeltaNet, Kimi Delta Attention) as its kernels read it: rows
// of one token, then the others, each with its slots, and what these layers share of such a step. Lives while one
// forward runs.
#pragma once

#include <cstdint>

#include "coluber/attention_metadata.h"
#include "coluber/mamba_base.h"
#include "coluber/model.h"
#include "kernels/conv/causal_conv1d.h"
#include "kernels/delta/delta_rule.h"
#include "layers/weight_loader.h"

namespace coluber {

// Of each head: exp(A_log).
FloatArray take_rates(WeightLoader& loader, const Shape& shape);

class DeltaStep {
 public:
  // Throws Error(kInternal) where the layer has no cache, its states (conv, recurrent) are not whole on this rank, or
  // the step asks for what these layers do not do: draft tokens, several tokens a decode row.
  DeltaStep(const MambaBase& layer, const ForwardBatch& batch, int64_t conv_elements, int64_t recurrent_elements);

  // `args` says everything but rows and state, from the step's first token on.
  void convolve(CausalConv1dArgs args) const;
  void attend(DeltaRuleArgs args) const;
  // Of a tensor [T, width]: tokens that pad the batch have no row, and nothing else writes theirs.
  void zero_padding(float* values, int64_t width) const;

 private:
  struct Rows {
    int64_t first_token = 0;
    int64_t count = 0;
    const int32_t* query_start_loc = nullptr;
    const int32_t* slots = nullptr;
    const uint8_t* has_initial_state = nullptr;
  };
  Rows decodes() const;
  Rows prefills() const;
  StateSlots slots_of(const Rows& rows, size_t state) const;

  const MambaBase& layer_;
  const ForwardBatch& batch_;
  const GDNAttentionMetadata& metadata_;
};

}  // namespace coluber
