// SPDX-License-Identifier: Apache-2.0
//
// The references of Mamba-1's scan: one channel at a time, in double between two roundings of the state. Not for the
// main path.
#pragma once

#include "kernels/scan/selective_scan.h"

namespace coluber::ref {

void selective_scan(const SelectiveScanArgs& args, ThreadPool& pool);
void selective_state_update(const SelectiveScanArgs& args, ThreadPool& pool);

}  // namespace coluber::ref
