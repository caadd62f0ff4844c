// SPDX-License-Identifier: Apache-2.0
//
// What this machine can do at best, now: the limits that benchmarks report shares of. Plain reads of memory that no
// cache holds, and float32 fused multiply-adds that never leave the registers, with the widest instructions of the
// active tier. Both take about a second and want the machine for themselves. Each measurement runs every thread at once
// and takes the slowest.
#pragma once

#include <cstdint>

#include "kernels/op.h"

namespace coluber {

struct Roofline {
  int threads = 0;
  double read_gbps = 0;  // 1e9 bytes a second, median
  double read_gbps_min = 0;
  double read_gbps_max = 0;
  double fma_gflops = 0;  // 1e9 operations a second, two for each multiply-add
};

inline constexpr int64_t kRooflineBytes = int64_t{512} << 20;

// Median of `repeats` passes over `bytes` of memory of its own, 1e9 bytes a second over all threads. Throws
// Error(kInvalidArgument) for less than one thread or less than 1 MiB a thread, Error(kOutOfMemory) where memory is
// short.
double measure_read_bandwidth(int threads, int64_t bytes = kRooflineBytes, int repeats = 5);
// 1e9 float32 operations a second over all threads.
double measure_fma_gflops(int threads);
// Both, with the spread of the reads.
Roofline measure_roofline(int threads, int64_t bytes = kRooflineBytes, int repeats = 5);

// The loops of one thread. They return a value that depends on all the work, so that none of it can be left out.
struct RooflineLoops {
  uint64_t (*read)(const void* data, int64_t bytes);  // data: 64-byte aligned; whole 512-byte groups are read
  float (*fma)(int64_t rounds, float seed);
  int64_t flops_per_round;
};
using RooflineFunction = RooflineLoops (*)();
const Operation<RooflineFunction>& roofline_loops();

}  // namespace coluber
