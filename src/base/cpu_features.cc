// SPDX-License-Identifier: Apache-2.0
#include "base/cpu_features.h"

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <optional>

#include "base/error.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace coluber {
namespace {

#if defined(__x86_64__)

struct Leaf {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Leaf cpuid(unsigned leaf, unsigned subleaf) {
  Leaf result;
  if (__get_cpuid_count(leaf, subleaf, &result.eax, &result.ebx, &result.ecx, &result.edx) == 0) return {};
  return result;
}

bool bit(unsigned word, int index) { return ((word >> index) & 1U) != 0; }

// XCR0: which register files the system saves. Inline assembly, because the intrinsic would need -mxsave.
uint64_t saved_registers() {
  if (!bit(cpuid(1, 0).ecx, 27)) return 0;
  unsigned low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<uint64_t>(high) << 32) | low;
}

Isa detect_isa() {
  const Leaf one = cpuid(1, 0);
  const Leaf seven = cpuid(7, 0);
  const uint64_t saved = saved_registers();
  const bool ymm = (saved & 0x6) == 0x6;
  const bool zmm = (saved & 0xe6) == 0xe6;
  const bool avx2 = ymm && bit(one.ecx, 12) && bit(one.ecx, 29) && bit(seven.ebx, 5);  // fma, f16c, avx2
  if (!avx2) return Isa::kRef;
  // f, dq, bw, vl
  const bool avx512 = zmm && bit(seven.ebx, 16) && bit(seven.ebx, 17) && bit(seven.ebx, 30) && bit(seven.ebx, 31);
  if (!avx512) return Isa::kAvx2;
  const bool vnni = bit(seven.ecx, 11);
  const bool bf16 = seven.eax >= 1 && bit(cpuid(7, 1).eax, 5);
  return vnni && bf16 ? Isa::kAvx512Bf16 : Isa::kAvx512;
}

// Leaf 4 (Intel) or 0x8000001D (AMD): one subleaf a cache.
void caches_from_cpuid(CpuFeatures& features) {
  for (const unsigned leaf : {4U, 0x8000001DU}) {
    for (unsigned index = 0; index < 8; ++index) {
      const Leaf cache = cpuid(leaf, index);
      const unsigned type = cache.eax & 0x1f;
      if (type == 0) break;
      if (type == 2) continue;  // instructions only
      const int64_t ways = (cache.ebx >> 22) + 1, partitions = ((cache.ebx >> 12) & 0x3ff) + 1;
      const int64_t line = (cache.ebx & 0xfff) + 1, sets = static_cast<int64_t>(cache.ecx) + 1;
      const int64_t bytes = ways * partitions * line * sets;
      const unsigned level = (cache.eax >> 5) & 0x7;
      if (level == 1) features.l1d_bytes = bytes;
      if (level == 2) features.l2_bytes = bytes;
      if (level == 3) features.l3_bytes = bytes;
    }
  }
}

void relax() noexcept { __builtin_ia32_pause(); }

#else

Isa detect_isa() { return Isa::kRef; }
void caches_from_cpuid(CpuFeatures&) {}
void relax() noexcept {}

#endif

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// False where the system has no such folder.
bool caches_from_sysfs(CpuFeatures& features) {
  bool found = false;
  for (int index = 0; index < 8; ++index) {
    const std::string folder = "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/";
    const std::string level = first_line(folder + "level"), type = first_line(folder + "type");
    const std::string size = first_line(folder + "size");
    if (level.empty() || size.empty() || type == "Instruction") continue;
    char* end = nullptr;
    int64_t bytes = std::strtoll(size.c_str(), &end, 10);
    if (*end == 'K') bytes <<= 10;
    if (*end == 'M') bytes <<= 20;
    if (bytes <= 0) continue;
    if (level == "1") features.l1d_bytes = bytes;
    if (level == "2") features.l2_bytes = bytes;
    if (level == "3") features.l3_bytes = bytes;
    found = true;
  }
  return found;
}

std::string read_model_name() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind("model name", 0) != 0) continue;
    const size_t colon = line.find(':');
    if (colon != std::string::npos && colon + 2 <= line.size()) return line.substr(colon + 2);
  }
  return "unknown processor";
}

CpuFeatures detect() {
  CpuFeatures features;
  features.best = detect_isa();
  features.model_name = read_model_name();
  if (!caches_from_sysfs(features)) caches_from_cpuid(features);
  return features;
}

std::optional<Isa> parse_isa(std::string_view name) {
  for (const Isa isa : {Isa::kRef, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16}) {
    if (name == isa_name(isa)) return isa;
  }
  return std::nullopt;
}

}  // namespace

std::string_view isa_name(Isa isa) noexcept {
  switch (isa) {
    case Isa::kRef:
      return "ref";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx512Bf16:
      return "avx512_bf16";
  }
  return "unknown";
}

void cpu_relax() noexcept { relax(); }

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = detect();
  return features;
}

Isa active_isa() {
  const Isa best = cpu_features().best;
  const char* forced = std::getenv("COLUBER_FORCE_ISA");
  if (forced == nullptr || *forced == '\0') return best;
  const std::optional<Isa> isa = parse_isa(forced);
  if (!isa) {
    throw make_error(ErrorCode::kInvalidArgument,
                     "COLUBER_FORCE_ISA is '{}'; expected ref, avx2, avx512 or avx512_bf16, or unset it", forced);
  }
  if (*isa > best) {
    throw make_error(ErrorCode::kInvalidArgument,
                     "COLUBER_FORCE_ISA asks for {}, but this processor ({}) has at most {}", forced,
                     cpu_features().model_name, isa_name(best));
  }
  return *isa;
}

}  // namespace coluber
