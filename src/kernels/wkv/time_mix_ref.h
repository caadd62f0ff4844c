// SPDX-License-Identifier: Apache-2.0
//
// The references of what surrounds RWKV's recurrences. Not for the main path.
#pragma once

#include "kernels/wkv/time_mix.h"

namespace coluber::ref {

void token_shift(const TokenShiftArgs& args, ThreadPool& pool);
void token_mix(const TokenMixArgs& args, ThreadPool& pool);
void wkv_map(const WkvMapArgs& args, ThreadPool& pool);
void head_norm(const HeadNormArgs& args, ThreadPool& pool);
void wkv7_prepare(const Wkv7PrepareArgs& args, ThreadPool& pool);

}  // namespace coluber::ref
