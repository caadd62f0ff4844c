// SPDX-License-Identifier: Apache-2.0
#include "kernels/state/state_codec.h"

#include "kernels/op_registry.h"
#include "kernels/state/scaled_row.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#define COLUBER_SIMD_SOURCE "kernels/state/state_codec_cpu.inl"
#include "kernels/simd/foreach_isa.h"

namespace coluber {
namespace {

using StateCodecTask = void (*)(bool pack, DType dtype, bool lanes, float* values, void* codes, float* scales,
                                int64_t begin, int64_t end, int64_t inner);

// Channels of a task: about 8,192 elements, whole blocks of 16.
int64_t task_channels(const StateCodecArgs& args) {
  const int64_t wanted = std::max<int64_t>(1, 8192 / std::max<int64_t>(args.inner, 1));
  return std::min((wanted + 15) / 16 * 16, (args.channels + 15) / 16 * 16);
}

template <StateCodecTask task, bool kPack>
void run_tasks(const StateCodecArgs& args, ThreadPool& pool) {
  const int64_t width = task_channels(args);
  if (width == 0 || args.inner == 0) return;
  const int64_t blocks = (args.channels + width - 1) / width, tasks = args.rows * args.outer * blocks;
  const StateSlots& slots = args.codes;
  const int64_t part = args.channels * args.inner, code_bytes = slots.dtype == DType::kInt16 ? 2 : 1;
  auto body = [&](int64_t first, int64_t last, int) {
    for (int64_t i = first; i < last; ++i) {
      const int64_t row = i / (args.outer * blocks), o = i / blocks % args.outer, begin = i % blocks * width;
      if (slots.is_null(row)) continue;
      const int64_t end = std::min(begin + width, args.channels);
      float* values = args.values + row * args.elements() + o * part;
      if (!kPack && slots.is_fresh(row)) {
        std::fill(values + begin * args.inner, values + end * args.inner, 0.0f);
        continue;
      }
      const int32_t slot = (kPack ? slots.dst : slots.src)[row * slots.index_stride];
      char* codes = static_cast<char*>(slots.at(slot)) + o * part * code_bytes;
      auto* scales = reinterpret_cast<float*>(static_cast<char*>(args.scales) + slot * slots.slot_stride_bytes);
      task(kPack, slots.dtype, args.lanes, values, codes, scales + o * args.channels, begin, end, args.inner);
    }
  };
  const int64_t grain = std::max<int64_t>(1, 16384 / (width * args.inner));
  if (tasks <= grain) return body(0, tasks, 0);
  pool.parallel_for(tasks, grain, body);
}

}  // namespace

const Operation<StateCodecFunction>& unpack_states() {
  static const Operation<StateCodecFunction> operation(
      "unpack_states", {{"avx512", Isa::kAvx512, &run_tasks<avx512::state_codec_task, false>},
                        {"avx2", Isa::kAvx2, &run_tasks<avx2::state_codec_task, false>},
                        {"ref", Isa::kRef, &unpack_states_ref}});
  return operation;
}

const Operation<StateCodecFunction>& pack_states() {
  static const Operation<StateCodecFunction> operation(
      "pack_states", {{"avx512", Isa::kAvx512, &run_tasks<avx512::state_codec_task, true>},
                      {"avx2", Isa::kAvx2, &run_tasks<avx2::state_codec_task, true>},
                      {"ref", Isa::kRef, &pack_states_ref}});
  return operation;
}

namespace {
const RegisterOperations kEntered(unpack_states, pack_states);
}

}  // namespace coluber
