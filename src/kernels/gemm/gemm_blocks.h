// SPDX-License-Identifier: Apache-2.0
//
// Products with a weight in blocks that is held row by row: panels of it, a few MiB at a time, are expanded to float32
// and multiplied by a candidate of the plain product, so that the result has the bits of a float32 weight of the same
// values, for any number of rows. Internal to this folder; arguments are checked by the caller.
#pragma once

#include "kernels/gemm/gemm.h"

namespace coluber {

void multiply_rows_of_blocks(const GemmArgs& args, GemmFunction plain, ThreadPool& pool, Workspace& workspace);

}  // namespace coluber
