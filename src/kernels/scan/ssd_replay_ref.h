// SPDX-License-Identifier: Apache-2.0
//
// The references of replay: the recurrence over the ring's inputs and the token, in double. Not for the main path.
#pragma once

#include "kernels/scan/ssd_replay.h"

namespace coluber::ref {

void ssd_replay_step(const SsdReplayArgs& args, ThreadPool& pool);
void ssd_replay_fold(const SsdReplayArgs& args, ThreadPool& pool);

}  // namespace coluber::ref
