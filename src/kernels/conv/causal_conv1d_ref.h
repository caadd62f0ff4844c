// SPDX-License-Identifier: Apache-2.0
//
// The references of the causal convolution: one channel at a time, sums in double. Not for the main path.
#pragma once

#include "kernels/conv/causal_conv1d.h"

namespace coluber::ref {

void causal_conv1d(const CausalConv1dArgs& args, ThreadPool& pool);
void causal_conv1d_update(const CausalConv1dArgs& args, ThreadPool& pool);

}  // namespace coluber::ref
