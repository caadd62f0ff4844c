// SPDX-License-Identifier: Apache-2.0
//
// What this processor can do, read once. The SIMD tiers of kernels are chosen from it; COLUBER_FORCE_ISA (ref, avx2,
// avx512, avx512_bf16) lowers the tier for tests.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace coluber {

enum class Isa { kRef = 0, kAvx2 = 1, kAvx512 = 2, kAvx512Bf16 = 3 };

std::string_view isa_name(Isa isa) noexcept;  // "ref", "avx2", "avx512", "avx512_bf16"

struct CpuFeatures {
  Isa best = Isa::kRef;    // the highest tier that the processor and the system support
  std::string model_name;  // as /proc/cpuinfo says
  int64_t l1d_bytes = 32 << 10;
  int64_t l2_bytes = 1 << 20;
  int64_t l3_bytes = 0;
};

const CpuFeatures& cpu_features();
// `best`, lowered by COLUBER_FORCE_ISA. Throws Error(kInvalidArgument) for an unknown name or a tier that is not there.
Isa active_isa();
// Tells the processor that this thread polls, so that its sibling and its clock are spared.
void cpu_relax() noexcept;

}  // namespace coluber
