// SPDX-License-Identifier: Apache-2.0
//
// A random number as a pure function of a seed and a position: no state to save, fork or replay, the same on every
// machine. Not for cryptography.
#pragma once

#include <cstdint>

namespace coluber {

// Mixes all bits of a word (a bijection): two rounds of multiply and xor-shift.
inline uint64_t mix_bits(uint64_t x) noexcept {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// Uniform in [0, 1), 53 bits. The seed is mixed before the position is added, so that neighbouring seeds do not share a
// sequence that is shifted by some places.
inline double uniform_at(uint64_t seed, uint64_t position) noexcept {
  constexpr uint64_t kGolden = 0x9e3779b97f4a7c15ULL;
  const uint64_t bits = mix_bits(mix_bits(seed + kGolden) + (position + 1) * kGolden);
  return static_cast<double>(mix_bits(bits + kGolden) >> 11) * 0x1.0p-53;
}

}  // namespace coluber
