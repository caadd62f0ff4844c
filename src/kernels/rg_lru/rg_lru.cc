// SPDX-License-Identifier: Apache-2.0
#include "kernels/rg_lru/rg_lru.h"

#include "kernels/op_registry.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#define COLUBER_SIMD_SOURCE "kernels/rg_lru/rg_lru_cpu.inl"
#include "kernels/simd/foreach_isa.h"

namespace coluber {
namespace {

constexpr int64_t kTaskChannels = 64;

using RgLruTask = void (*)(const RgLruArgs& args, int64_t row, int64_t begin, int64_t end, int64_t c0, int64_t c1);

// Tasks are a row's blocks of channels. `kStep`: row r is token r.
template <RgLruTask task, bool kStep>
void run_tasks(const RgLruArgs& args, ThreadPool& pool) {
  const int64_t blocks = (args.channels + kTaskChannels - 1) / kTaskChannels;
  auto body = [&](int64_t first, int64_t last, int) {
    for (int64_t i = first; i < last; ++i) {
      const int64_t row = i / blocks, c0 = i % blocks * kTaskChannels;
      const int64_t begin = kStep ? row : args.query_start_loc[row];
      const int64_t end = kStep ? row + 1 : args.query_start_loc[row + 1];
      task(args, row, begin, end, c0, std::min(c0 + kTaskChannels, args.channels));
    }
  };
  // 4096 channel steps are worth a thread.
  const int64_t tokens =
      kStep || args.rows == 0 ? args.rows : args.query_start_loc[args.rows] - args.query_start_loc[0];
  const int64_t tokens_a_task = std::max<int64_t>(1, args.rows > 0 ? tokens / args.rows : 1);
  const int64_t grain = std::max<int64_t>(1, 4096 / (tokens_a_task * kTaskChannels));
  if (args.rows * blocks <= grain) return body(0, args.rows * blocks, 0);
  pool.parallel_for(args.rows * blocks, grain, body);
}

}  // namespace

const Operation<RgLruFunction>& rg_lru() {
  static const Operation<RgLruFunction> operation("rg_lru",
                                                  {{"avx512", Isa::kAvx512, &run_tasks<avx512::rg_lru_task, false>},
                                                   {"avx2", Isa::kAvx2, &run_tasks<avx2::rg_lru_task, false>},
                                                   {"ref", Isa::kRef, &rg_lru_ref}});
  return operation;
}

const Operation<RgLruFunction>& rg_lru_update() {
  static const Operation<RgLruFunction> operation("rg_lru_update",
                                                  {{"avx512", Isa::kAvx512, &run_tasks<avx512::rg_lru_task, true>},
                                                   {"avx2", Isa::kAvx2, &run_tasks<avx2::rg_lru_task, true>},
                                                   {"ref", Isa::kRef, &rg_lru_update_ref}});
  return operation;
}

void prepare_rg_lru_decay(const float* recurrent_param, int64_t channels, float* log_decay) {
  for (int64_t c = 0; c < channels; ++c) {
    const double p = recurrent_param[c];
    log_decay[c] = static_cast<float>(-8.0 * (std::max(p, 0.0) + std::log1p(std::exp(-std::fabs(p)))));
  }
}

namespace {
const RegisterOperations kEntered(rg_lru, rg_lru_update);
}

}  // namespace coluber
