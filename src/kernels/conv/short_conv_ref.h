// SPDX-License-Identifier: Apache-2.0
//
// The references of the short convolution: one channel at a time, sums in double. Not for the main path.
#pragma once

#include "kernels/conv/short_conv.h"

namespace coluber::ref {

void short_conv(const ShortConvArgs& args, ThreadPool& pool);
void short_conv_update(const ShortConvArgs& args, ThreadPool& pool);

}  // namespace coluber::ref
