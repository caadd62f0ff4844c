// SPDX-License-Identifier: Apache-2.0
//
// Softmax attention over queries, keys and values that somebody else projected: for blocks that share weights and keep
// caches apart, and for projections that are not plain. Owns no weight and no page. One forward at a time.
#pragma once

#include "layers/softmax_attention.h"

namespace coluber {

class ProjectedAttention final : public SoftmaxAttention {
 public:
  // As SoftmaxAttention's.
  ProjectedAttention(const SoftmaxAttentionConfig& config, const WeightLoader& loader)
      : SoftmaxAttention(config, loader) {}

  // q [T, Hq, D], k and v [T, Hkv, D] to out [T, Hq, D]; q and k are rotated in place.
  void forward(const ForwardBatch& batch, float* q, float* k, const float* v, float* out) const {
    rotate(batch, q, k);
    attend(batch, q, k, v, out);
  }
};

}  // namespace coluber
