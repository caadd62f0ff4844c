// SPDX-License-Identifier: Apache-2.0
// What the recurrent kernels share over the tier's vector type: states in three element types, and the exponential of
// decays.

COLUBER_INLINE Vec load_state(const float* p) { return load(p); }
COLUBER_INLINE Vec load_state(const StateBf16* p) { return load_bf16(&p->bits); }
COLUBER_INLINE Vec load_state(const StateF16* p) { return load_f16(&p->bits); }
COLUBER_INLINE void store_state(float* p, Vec a) { store(p, a); }
COLUBER_INLINE void store_state(StateBf16* p, Vec a) { store_bf16(&p->bits, a); }
COLUBER_INLINE void store_state(StateF16* p, Vec a) {
  // The operand order of min and max lets NaN through.
  store_f16(&p->bits, max(set1(-65504.0f), min(set1(65504.0f), a)));
}

COLUBER_INLINE Vec load_state_n(const float* p, int n) { return load_n(p, n); }
template <typename S>
COLUBER_INLINE Vec load_state_n(const S* p, int n) {
  S lanes[kLanes] = {};
  std::memcpy(lanes, p, static_cast<size_t>(n) * sizeof(S));
  return load_state(lanes);
}
COLUBER_INLINE void store_state_n(float* p, Vec a, int n) { store_n(p, a, n); }
template <typename S>
COLUBER_INLINE void store_state_n(S* p, Vec a, int n) {
  S lanes[kLanes];
  store_state(lanes, a);
  std::memcpy(p, lanes, static_cast<size_t>(n) * sizeof(S));
}

// Calls work(element), whose type is that of the states' elements.
template <typename Work>
COLUBER_INLINE void by_state_type(DType dtype, Work&& work) {
  switch (dtype) {
    case DType::kBFloat16:
      return work(StateBf16{});
    case DType::kFloat16:
      return work(StateF16{});
    default:
      return work(float{});
  }
}

#if COLUBER_ISA_AVX512
// p * 2^n where the low bits of `m` hold n.
COLUBER_INLINE Vec scale_by_low_bits(Vec p, Vec m) {
  return {
      _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p.v), _mm512_slli_epi32(_mm512_castps_si512(m.v), 23)))};
}
#else
COLUBER_INLINE Vec scale_by_low_bits(Vec p, Vec m) {
  return {
      _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p.v), _mm256_slli_epi32(_mm256_castps_si256(m.v), 23)))};
}
#endif

// 2^x for x <= 0: 12 operations against exp2v's 24. Within 1.7e-7, exact at 0; below -126 it stays at 2^-126. A NaN
// comes out as NaN only where its low bits are 0, as those of the processor's own results are.
COLUBER_INLINE Vec exp2_decay(Vec x) {
  x = max(set1(-126.0f), x);
  const Vec magic = set1(12582912.0f);  // 1.5 * 2^23: the sum's low bits are round(x)
  Vec m = x + magic;
  Vec f = x - (m - magic);
  Vec p = set1(1.326463232e-3f);
  p = fma(p, f, set1(9.671487105e-3f));
  p = fma(p, f, set1(5.550733743e-2f));
  p = fma(p, f, set1(2.402224249e-1f));
  p = fma(p, f, set1(6.931469778e-1f));
  p = fma(p, f, set1(1.0f));
  return scale_by_low_bits(p, m);
}

// Decayed states run into subnormal numbers, each of which costs this kind of processor over 100 cycles: they count as
// zero while this lives, on this thread.
struct SubnormalsAreZero {
  SubnormalsAreZero() : saved(_mm_getcsr()) { _mm_setcsr(saved | 0x8040u); }
  ~SubnormalsAreZero() { _mm_setcsr(saved); }
  SubnormalsAreZero(const SubnormalsAreZero&) = delete;
  SubnormalsAreZero& operator=(const SubnormalsAreZero&) = delete;
  unsigned saved;
};
