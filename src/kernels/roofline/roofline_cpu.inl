// SPDX-License-Identifier: Apache-2.0
// Eight independent streams of xor hide its latency; ten sums hide that of the fused multiply-add (4 cycles times 2
// units).

inline constexpr int kStreams = 8;
inline constexpr int kSums = 10;

inline uint64_t read_all(const void* data, int64_t bytes) {
  constexpr int64_t kWords = kLanes / 2;  // of 64 bits in a vector
  const auto* at = static_cast<const uint64_t*>(data);
  typedef uint64_t Word __attribute__((vector_size(kLanes * 4)));
  Word mix[kStreams] = {};
  for (int64_t group = bytes / (kStreams * kLanes * 4); group > 0; --group, at += kStreams * kWords) {
#pragma GCC unroll 8
    for (int i = 0; i < kStreams; ++i) mix[i] ^= *reinterpret_cast<const Word*>(at + i * kWords);
  }
  uint64_t all = 0;
  for (const Word& word : mix) {
    for (int i = 0; i < kWords; ++i) all ^= word[i];
  }
  return all;
}

inline float fma_all(int64_t rounds, float seed) {
  Vec sums[kSums];
  for (int i = 0; i < kSums; ++i) sums[i] = set1(seed + static_cast<float>(i));
  Vec factor = set1(0.999f), addend = set1(0.001f);
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 10
    for (int i = 0; i < kSums; ++i) sums[i] = fma(sums[i], factor, addend);
    // The compiler must not see that the factors stay the same, or it may join rounds.
    __asm__ volatile("" : "+v"(factor.v), "+v"(addend.v));
  }
  float total = 0;
  for (const Vec& sum : sums) total += reduce_add(sum);
  return total;
}

inline RooflineLoops loops() { return {read_all, fma_all, 2 * kLanes * kSums}; }
