// SPDX-License-Identifier: Apache-2.0
//
// Sparse attention's choice of keys: notes something about each token in a plane of the layer's pages, and names the
// blocks of positions that each query of a step sees. Owns weights, never pages. One call at a time.
#pragma once

#include <cstdint>

#include "coluber/model.h"
#include "kernels/attention/paged_attention.h"

namespace coluber {

class KeySelector {
 public:
  virtual ~KeySelector() = default;
  // What a token leaves in the pages, in elements.
  virtual int64_t row_elements() const noexcept = 0;
  // x [T, hidden_size]; `queries`: what the layer's queries come from, [T, its width]; `step`: the rows and pages of
  // the layer's attention; `notes`: the selector's plane in those pages. Notes the step's tokens, then chooses. The
  // answer lies in the batch's workspace, where it stays until the caller's scope ends.
  virtual KeySelection select(const ForwardBatch& batch, const float* x, const float* queries,
                              const PagedAttentionArgs& step, const int64_t* slot_mapping, const KvPages& notes) = 0;
};

}  // namespace coluber
