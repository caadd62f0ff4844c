// SPDX-License-Identifier: Apache-2.0
//
// Replay of SSD's steps (one token a row, state [H, P, N]): a row reads its state S0 and a ring of the m inputs that
// came since S0 was written, and writes nothing but its own input into the ring; only a row that flushes writes the
// state. With dt[j] after bias, softplus and limits, j = m the row's own token:
//
//   e[j]    = exp(a[h] * (dt[j+1] + ... + dt[m]))           e[-1]: over all of them
//   y[h, p] = e[-1] * sum_n S0[h, p, n] * c[n] + sum_j dt[j] * e[j] * (b[j] . c) * x[j, h, p] + d[h] * x[m, h, p]
//   flush:    S[h, p, n] = e[-1] * S0[h, p, n] + sum_j dt[j] * e[j] * x[j, h, p] * b[j, n], and y as of S
//
// That is ssd.h's recurrence in another order of sums: kSsdTolerance holds. The fold writes the state of the ring's
// inputs alone, with no token. Rows run in place (src = dst). A row without an initial state has an empty ring and
// always flushes; a row without a slot gives zeros and touches nothing. Who calls counts the inputs: after a step m +
// 1, after a flush or a fold 0.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/op.h"
#include "kernels/scan/ssd.h"

namespace coluber {

inline constexpr int64_t kMaxSsdReplay = 64;

// Where each slot keeps its last inputs, float32: slot s lies s * slot_stride_bytes behind these.
struct SsdRing {
  float* x = nullptr;   // [H, L, P]
  float* dt = nullptr;  // [H, L] after bias, softplus and limits
  float* b = nullptr;   // [G, L, N]
  int64_t slot_stride_bytes = 0;
  int64_t length = 0;  // L in [1, kMaxSsdReplay]
};

struct SsdReplayArgs {
  // Row r is token r. The fold reads state, rows, a and sizes only.
  SsdArgs ssd;
  SsdRing ring;
  const int32_t* counts = nullptr;  // [R] inputs in the ring; a step that does not flush needs room for one more
  const uint8_t* flush = nullptr;   // [R]; not read by the fold
};

using SsdReplayFunction = void (*)(const SsdReplayArgs& args, ThreadPool& pool);
const Operation<SsdReplayFunction>& ssd_replay_step();
// Rows with an empty ring are left alone.
const Operation<SsdReplayFunction>& ssd_replay_fold();

}  // namespace coluber
