// SPDX-License-Identifier: Apache-2.0
//
// The greedy choice where the logits lie, so that a device sends its host one number a row instead of a vocabulary:
//
//   ids[i] = the lowest id whose logit is the largest of row i
//            -1 where a logit is NaN or +infinity, or none is above minus infinity
//
// That is what sample_token (sample.h) chooses, and where it calls logits not finite, while nothing changes the logits.
// Exact: every candidate gives the same ids.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/op.h"

namespace coluber {

struct LargestLogitsArgs {
  const float* logits = nullptr;  // [rows, V]
  int64_t rows = 0;
  int64_t vocab = 0;
  int32_t* ids = nullptr;  // [rows]
};

using LargestLogitsFunction = void (*)(const LargestLogitsArgs& args, ThreadPool& pool);
const Operation<LargestLogitsFunction>& largest_logits();

void largest_logits_ref(const LargestLogitsArgs& args, ThreadPool& pool);

}  // namespace coluber
