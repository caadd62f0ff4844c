// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "kernels/gemm/gemm_cpu.h"

namespace coluber {

void gemm_ref(const GemmArgs& args, ThreadPool& pool, Workspace& workspace) {
  const PackedMatrix& w = *args.w;
  WorkspaceScope scope(workspace);
  float* rows = workspace.take<float>(w.k() * pool.size());
  pool.parallel_for(w.n(), 16, [&](int64_t begin, int64_t end, int thread) {
    float* row = rows + w.k() * thread;
    for (int64_t n = begin; n < end; ++n) {
      w.unpack_stored_row(n, row);
      for (int64_t m = 0; m < args.m; ++m) {
        float sum = 0;
        for (int64_t k = 0; k < w.k(); ++k) sum = std::fma(args.a[m * args.lda + k], row[k], sum);
        float& c = args.c[m * args.ldc + n];
        if (args.bias != nullptr) sum += args.bias[n];
        c = args.accumulate ? sum + c : sum;
      }
    }
  });
}

}  // namespace coluber
