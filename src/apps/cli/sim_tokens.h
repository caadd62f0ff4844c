// SPDX-License-Identifier: Apache-2.0
//
// Made-up tokens: the i-th token of a name is a function of both, so that texts of one name are equal and those of two
// part at once.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace coluber::cli {

inline uint64_t mix_bits(uint64_t x) noexcept {  // splitmix64's finish
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

inline uint64_t name_seed(std::string_view name) noexcept {
  uint64_t seed = 0x9E3779B97F4A7C15ull;
  for (const char c : name) seed = mix_bits(seed + static_cast<unsigned char>(c) + 1);
  return seed;
}

inline void append_tokens(uint64_t seed, int64_t count, std::vector<int32_t>& tokens) {
  tokens.reserve(tokens.size() + static_cast<size_t>(count));
  uint64_t state = seed;
  for (int64_t i = 0; i < count; ++i) {
    state += 0x9E3779B97F4A7C15ull;
    tokens.push_back(static_cast<int32_t>(mix_bits(state) & 0x7FFFFFFFu));
  }
}

}  // namespace coluber::cli
