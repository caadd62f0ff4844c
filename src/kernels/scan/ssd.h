// SPDX-License-Identifier: Apache-2.0
//
// Mamba-2's state-space duality (SSD) over packed sequences in chunks (matrix products), and its step of one token a
// row.
//
//   dt[t, h]   = min(max(softplus(dt[t, h] + dt_bias[h]), dt_min), dt_max)
//   S[h, p, n] = exp(dt[t, h] * a[h]) * S[h, p, n] + dt[t, h] * x[t, h, p] * b[t, g, n]         g = h / (H / G)
//   y[t, h, p] = sum_n S[h, p, n] * c[t, g, n] + d[h] * x[t, h, p]
//
// Source: Dao and Gu 2024 (arXiv 2405.21060), mamba_ssm's mamba_chunk_scan_combined and selective_state_update; unlike
// the latter the step clamps dt too. Within a chunk decays are 2^(difference of cumulative sums), a difference that is
// never above 0. Chunks start at the row's first token, so only rounding depends on how a prompt was cut. The gate and
// the norm are not here. Arguments are borrowed for the call; rows must not share a dst slot.
#pragma once

#include <cstdint>
#include <limits>

#include "base/thread_pool.h"
#include "kernels/op.h"
#include "kernels/state_slots.h"
#include "kernels/tolerance.h"
#include "tensor/workspace.h"

namespace coluber {

inline constexpr int64_t kMaxSsdState = 1024;
// With a float32 state. A 16-bit state adds its own rounding where it is stored.
inline constexpr Tolerance kSsdTolerance{1e-6, 1e-5, 1e-5};

struct SsdArgs {
  const float* x = nullptr;   // [T, H, P]; heads P apart
  int64_t x_stride = 0;       // elements between tokens
  const float* dt = nullptr;  // [T, H] before bias and softplus
  int64_t dt_stride = 0;
  const float* dt_bias = nullptr;  // [H] or null
  float dt_min = 0.0f;
  float dt_max = std::numeric_limits<float>::infinity();
  const float* a = nullptr;  // [H] -exp(A_log)
  const float* b = nullptr;  // [T, G, N]
  int64_t b_stride = 0;
  const float* c = nullptr;  // [T, G, N]
  int64_t c_stride = 0;
  const float* d = nullptr;  // [H] or null
  float* y = nullptr;        // [T, H, P]; may be x
  int64_t y_stride = 0;
  StateSlots state;                          // (H, P, N)
  StateExports exports;                      // of the chunk scan; a chunk ends at each, which changes rounding only
  const int32_t* query_start_loc = nullptr;  // [R+1]; not read by the update, whose row r is token r
  int64_t rows = 0;
  int64_t num_heads = 0;
  int64_t head_dim = 0;
  int64_t num_groups = 0;  // divides num_heads
  int64_t state_size = 0;  // N in [1, kMaxSsdState]
  int64_t chunk_size = 0;  // tokens of a chunk, 0: the kernel's choice; no result depends on it but for rounding
  int64_t tokens = 0;      // of all rows of the chunk scan, for devices, whose starts the host cannot read
  // Devices may round x, b, c and y to bfloat16 in the chunk scan, for the tensor cores (ssd_prefill_cuda.h).
  bool allow_bf16 = false;
};

using SsdFunction = void (*)(const SsdArgs& args, ThreadPool& pool, Workspace& workspace);
const Operation<SsdFunction>& ssd_chunk_scan();
const Operation<SsdFunction>& ssd_state_update();

}  // namespace coluber
