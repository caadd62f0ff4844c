// SPDX-License-Identifier: Apache-2.0
#include "kernels/scan/ssd_replay.h"

#include "kernels/op_registry.h"
#include "kernels/scan/ssd_replay_ref.h"

#define COLUBER_SIMD_SOURCE "kernels/scan/ssd_replay_cpu.inl"
#include "kernels/simd/foreach_isa.h"

namespace coluber {

const Operation<SsdReplayFunction>& ssd_replay_step() {
  static const Operation<SsdReplayFunction> operation("ssd_replay_step",
                                                      {
                                                          {"avx512", Isa::kAvx512, avx512::ssd_replay_step},
                                                          {"avx2", Isa::kAvx2, avx2::ssd_replay_step},
                                                          {"ref", Isa::kRef, ref::ssd_replay_step},
                                                      });
  return operation;
}

const Operation<SsdReplayFunction>& ssd_replay_fold() {
  static const Operation<SsdReplayFunction> operation("ssd_replay_fold",
                                                      {
                                                          {"avx512", Isa::kAvx512, avx512::ssd_replay_fold},
                                                          {"avx2", Isa::kAvx2, avx2::ssd_replay_fold},
                                                          {"ref", Isa::kRef, ref::ssd_replay_fold},
                                                      });
  return operation;
}

namespace {
const RegisterOperations kEntered(ssd_replay_step, ssd_replay_fold);
}

}  // namespace coluber
