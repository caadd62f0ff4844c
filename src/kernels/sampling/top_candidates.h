// SPDX-License-Identifier: Apache-2.0
//
// The best logits of a vocabulary in the order (logit descending, id ascending), without sorting the rest.
#pragma once

#include <cstdint>

#include "kernels/sampling/sample.h"

namespace coluber {

// Fills scratch.candidates with the best `count` logits above minus infinity, best first. `block_maxima` are
// scan_logits'.
void select_top_candidates(const float* logits, int64_t vocab, const float* block_maxima, int64_t count,
                           SampleScratch& scratch);

}  // namespace coluber
