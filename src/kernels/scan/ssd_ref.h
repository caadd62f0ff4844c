// SPDX-License-Identifier: Apache-2.0
//
// The references of SSD: the recurrence, token by token, in double. Not for the main path.
#pragma once

#include "kernels/scan/ssd.h"

namespace coluber::ref {

void ssd_chunk_scan(const SsdArgs& args, ThreadPool& pool, Workspace& workspace);
void ssd_state_update(const SsdArgs& args, ThreadPool& pool, Workspace& workspace);

}  // namespace coluber::ref
