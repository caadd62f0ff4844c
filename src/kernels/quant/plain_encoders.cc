// SPDX-License-Identifier: Apache-2.0
// Types with one scale a block. The order of operations is part of the contract: other writers give the same bytes.
#include <algorithm>
#include <cmath>

#include "kernels/quant/block_encoders.h"

namespace coluber {
namespace {

constexpr int64_t kElements = 32;

// The first of the values whose magnitude is the largest.
float extreme_of(const float* values) {
  float extreme = 0, magnitude = 0;
  for (int64_t i = 0; i < kElements; ++i) {
    if (magnitude < std::fabs(values[i])) {
      magnitude = std::fabs(values[i]);
      extreme = values[i];
    }
  }
  return extreme;
}

// Codes of four bits, the first half of the block in the low nibbles; a fifth bit of each in a word of its own.
void put_codes(const int* codes, std::byte* nibbles, std::byte* fifth_bits) {
  for (int64_t i = 0; i < kElements / 2; ++i)
    nibbles[i] = static_cast<std::byte>((codes[i] & 0xf) | (codes[i + kElements / 2] & 0xf) << 4);
  if (fifth_bits == nullptr) return;
  uint32_t high = 0;
  for (int64_t i = 0; i < kElements; ++i) high |= static_cast<uint32_t>((codes[i] >> 4) & 1) << i;
  put_word(fifth_bits, 0, high);
}

// Around zero: the extreme value has the code 0, which stands for -half.
void encode_centred(const float* values, int half, std::byte* scale_at, std::byte* nibbles, std::byte* fifth_bits) {
  const float scale = extreme_of(values) / static_cast<float>(-half);
  const float inverse = inverse_of(scale);
  put_half(scale_at, 0, scale);
  int codes[kElements];
  for (int64_t i = 0; i < kElements; ++i)
    codes[i] = std::min(static_cast<int>(values[i] * inverse + (static_cast<float>(half) + 0.5f)), 2 * half - 1);
  put_codes(codes, nibbles, fifth_bits);
}

// From the least value on, which is stored behind the scale.
void encode_offset(const float* values, int most, std::byte* scale_at, std::byte* nibbles, std::byte* fifth_bits) {
  const auto [low, high] = std::minmax_element(values, values + kElements);
  const float scale = (*high - *low) / static_cast<float>(most);
  const float inverse = inverse_of(scale);
  put_half(scale_at, 0, scale);
  put_half(scale_at, 2, *low);
  int codes[kElements];
  for (int64_t i = 0; i < kElements; ++i)
    codes[i] = std::min(static_cast<int>((values[i] - *low) * inverse + 0.5f), most);
  put_codes(codes, nibbles, fifth_bits);
}

}  // namespace

void encode_q4_0(const float* values, int64_t count, std::byte* blocks) {
  for (int64_t b = 0; b < count; ++b, values += kElements, blocks += 18)
    encode_centred(values, 8, blocks, blocks + 2, nullptr);
}

void encode_q4_1(const float* values, int64_t count, std::byte* blocks) {
  for (int64_t b = 0; b < count; ++b, values += kElements, blocks += 20)
    encode_offset(values, 15, blocks, blocks + 4, nullptr);
}

void encode_q5_0(const float* values, int64_t count, std::byte* blocks) {
  for (int64_t b = 0; b < count; ++b, values += kElements, blocks += 22)
    encode_centred(values, 16, blocks, blocks + 6, blocks + 2);
}

void encode_q5_1(const float* values, int64_t count, std::byte* blocks) {
  for (int64_t b = 0; b < count; ++b, values += kElements, blocks += 24)
    encode_offset(values, 31, blocks, blocks + 8, blocks + 4);
}

void encode_q8_0(const float* values, int64_t count, std::byte* blocks) {
  for (int64_t b = 0; b < count; ++b, values += kElements, blocks += 34) {
    const float scale = std::fabs(extreme_of(values)) / 127.0f;
    const float inverse = inverse_of(scale);
    put_half(blocks, 0, scale);
    for (int64_t i = 0; i < kElements; ++i)
      put_word(blocks, 2 + i, static_cast<int8_t>(std::round(values[i] * inverse)));
  }
}

}  // namespace coluber
