// SPDX-License-Identifier: Apache-2.0
#include "kernels/scan/ssd.h"
#include "kernels/op_registry.h"
#include "kernels/scan/ssd_ref.h"

#define COLUBER_SIMD_SOURCE "kernels/scan/ssd_chunk_scan_cpu.inl"
#include "kernels/simd/foreach_isa.h"

namespace coluber {

const Operation<SsdFunction>& ssd_chunk_scan() {
  static const Operation<SsdFunction> operation("ssd_chunk_scan", {
                                                                      {"avx512", Isa::kAvx512, avx512::ssd_chunk_scan},
                                                                      {"avx2", Isa::kAvx2, avx2::ssd_chunk_scan},
                                                                      {"ref", Isa::kRef, ref::ssd_chunk_scan},
                                                                  });
  return operation;
}

namespace {
const RegisterOperations kEntered(ssd_chunk_scan);
}

}  // namespace coluber
