// SPDX-License-Identifier: Apache-2.0
#include "kernels/scan/selective_scan.h"

#include "kernels/op_registry.h"
#include "kernels/scan/selective_scan_ref.h"

#define COLUBER_SIMD_SOURCE "kernels/scan/selective_scan_cpu.inl"
#include "kernels/simd/foreach_isa.h"

namespace coluber {

const Operation<SelectiveScanFunction>& selective_scan() {
  static const Operation<SelectiveScanFunction> operation("selective_scan",
                                                          {
                                                              {"avx512", Isa::kAvx512, avx512::selective_scan},
                                                              {"avx2", Isa::kAvx2, avx2::selective_scan},
                                                              {"ref", Isa::kRef, ref::selective_scan},
                                                          });
  return operation;
}

const Operation<SelectiveScanFunction>& selective_state_update() {
  static const Operation<SelectiveScanFunction> operation("selective_state_update",
                                                          {
                                                              {"avx512", Isa::kAvx512, avx512::selective_state_update},
                                                              {"avx2", Isa::kAvx2, avx2::selective_state_update},
                                                              {"ref", Isa::kRef, ref::selective_state_update},
                                                          });
  return operation;
}

void prepare_selective_scan_a(const float* a_log, int64_t channels, int64_t state_size, float* a) {
  constexpr double kLog2E = 1.4426950408889634;
  for (int64_t channel = 0; channel < channels; ++channel) {
    for (int64_t n = 0; n < state_size; ++n) {
      a[channel_block16_index(channel, n, channels, state_size)] =
          static_cast<float>(-std::exp(static_cast<double>(a_log[channel * state_size + n])) * kLog2E);
    }
  }
}

namespace {
const RegisterOperations kEntered(selective_scan, selective_state_update);
}

}  // namespace coluber
