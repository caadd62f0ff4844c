// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/gemm.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "kernels/gemm/gemm_blocks.h"
#include "kernels/gemm/gemm_cpu.h"
#include "kernels/op_registry.h"

namespace coluber {
namespace {

void check(const GemmArgs& args) {
  COLUBER_CHECK(args.w != nullptr && args.w->data() != nullptr, "gemm without a packed weight");
  COLUBER_CHECK(args.m >= 0, "gemm of {} rows", args.m);
  COLUBER_CHECK(args.m == 0 || (args.a != nullptr && args.c != nullptr), "gemm of {} rows without A or C", args.m);
  COLUBER_CHECK(args.m <= 1 || (args.lda >= args.w->k() && args.ldc >= args.w->n()),
                "gemm of [{}, {}]: row strides {} and {} are smaller than a row", args.w->n(), args.w->k(), args.lda,
                args.ldc);
}

template <GemmFunction kFunction>
void multiply(const GemmArgs& args, ThreadPool& pool, Workspace& workspace) {
  if (args.w->block_type() != nullptr && args.w->panel_form() == nullptr)
    return multiply_rows_of_blocks(args, kFunction, pool, workspace);
  kFunction(args, pool, workspace);
}

// A with its columns in the weight's order.
template <GemmFunction kFunction>
void multiply_gathered(const GemmArgs& args, ThreadPool& pool, Workspace& workspace) {
  WorkspaceScope scope(workspace);
  const std::span<const int32_t> order = args.w->column_order();
  const auto k = static_cast<int64_t>(order.size());
  float* gathered = workspace.take<float>(args.m * k);
  pool.parallel_for(args.m, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row)
      for (int64_t i = 0; i < k; ++i) gathered[row * k + i] = args.a[row * args.lda + order[static_cast<size_t>(i)]];
  });
  GemmArgs in_order = args;
  in_order.a = gathered;
  in_order.lda = k;
  multiply<kFunction>(in_order, pool, workspace);
}

template <GemmFunction kFunction>
void checked(const GemmArgs& args, ThreadPool& pool, Workspace& workspace) {
  check(args);
  if (args.m == 0) return;
  if (!args.w->column_order().empty()) return multiply_gathered<kFunction>(args, pool, workspace);
  multiply<kFunction>(args, pool, workspace);
}

// Without permission to round A the instructions of the tier below are all there is to use.
void gemm_avx512_bf16(const GemmArgs& args, ThreadPool& pool, Workspace& workspace) {
  if (args.allow_bf16 && args.w->dtype() == DType::kBFloat16) {
    avx512_bf16::gemm_bf16(args, pool, workspace);
  } else {
    avx512::gemm_f32(args, pool, workspace);
  }
}

// The best of a few tries: what another program takes away makes a try longer, never shorter.
double best_seconds(float (*chains)(int64_t)) {
  using Clock = std::chrono::steady_clock;
  constexpr int kTries = 8;
  constexpr int64_t kRounds = 2000;
  double best = 1;
  volatile float sink = 0;
  for (int i = 0; i < kTries; ++i) {
    const Clock::time_point start = Clock::now();
    sink = sink + chains(kRounds);
    best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count());
  }
  return best;
}

}  // namespace

bool bf16_products_pay() {
  // A dot product does the work of two multiply-adds; level is not worth rounded activations.
  constexpr double kLeastGain = 1.25;
  static const bool pay = active_isa() >= Isa::kAvx512Bf16 && best_seconds(avx512_bf16::dot_chains) * kLeastGain <
                                                                  2 * best_seconds(avx512_bf16::fma_chains);
  return pay;
}

const Operation<GemmFunction>& gemm() {
  static const Operation<GemmFunction> operation("gemm",
                                                 {
                                                     {"avx512_bf16", Isa::kAvx512Bf16, checked<gemm_avx512_bf16>},
                                                     {"avx512", Isa::kAvx512, checked<avx512::gemm_f32>},
                                                     {"avx2", Isa::kAvx2, checked<avx2::gemm_f32>},
                                                     {"ref", Isa::kRef, checked<gemm_ref>},
                                                 });
  return operation;
}

namespace {
const RegisterOperations kEntered(gemm);
}

}  // namespace coluber
