// SPDX-License-Identifier: Apache-2.0
// Elementary functions over the tier's vector type. exp2 and exp are within 2 ulp where the result is at least 1.7e-38,
// 0 from there on down, infinite where float32 overflows; NaN goes through (it is the second operand of max and min,
// which they return). The polynomials give twice the value, so that the scale 2^(n-1) stays in range for n = 128 and
// vanishes for n = -126: both ends come out right without a comparison.

// 2^x. Range reduction to [-0.5, 0.5], degree-6 polynomial.
COLUBER_INLINE Vec exp2v(Vec x) {
  Vec clamped = min(set1(128.0f), max(set1(-126.0f), x));
  Vec n = round(clamped);
  Vec f = clamped - n;
  Vec p = set1(2 * 1.5353362e-4f);
  p = fma(p, f, set1(2 * 1.3398874e-3f));
  p = fma(p, f, set1(2 * 9.6184374e-3f));
  p = fma(p, f, set1(2 * 5.5503325e-2f));
  p = fma(p, f, set1(2 * 2.4022648e-1f));
  p = fma(p, f, set1(2 * 6.9314720e-1f));
  p = fma(p, f, set1(2.0f));
  return p * pow2i(n - set1(1.0f));
}

// e^x by a two-part reduction, so that large arguments keep their precision.
COLUBER_INLINE Vec expv(Vec x) {
  Vec clamped = min(set1(88.75f), max(set1(-87.34f), x));
  Vec n = round(clamped * set1(1.44269504f));
  Vec r = fnma(n, set1(0.693145752f), clamped);
  r = fnma(n, set1(1.42860677e-6f), r);
  Vec p = set1(2 * 1.9875691e-4f);
  p = fma(p, r, set1(2 * 1.3981999e-3f));
  p = fma(p, r, set1(2 * 8.3334519e-3f));
  p = fma(p, r, set1(2 * 4.1665796e-2f));
  p = fma(p, r, set1(2 * 1.6666665e-1f));
  p = fma(p, r, set1(2 * 5.0000001e-1f));
  p = fma(p * r, r, fma(r, set1(2.0f), set1(2.0f)));
  return p * pow2i(n - set1(1.0f));
}

// Natural logarithm of a positive normal number.
COLUBER_INLINE Vec logv(Vec x) {
  Vec e = exponent_of(x);
  Vec m = mantissa_of(x);
  Vec big = set1(1.41421356f);
  e = select_gt(m, big, e + set1(1.0f), e);
  m = select_gt(m, big, m * set1(0.5f), m);
  Vec f = m - set1(1.0f);
  Vec z = f * f;
  Vec p = set1(7.0376836e-2f);
  p = fma(p, f, set1(-1.1514610e-1f));
  p = fma(p, f, set1(1.1676998e-1f));
  p = fma(p, f, set1(-1.2420141e-1f));
  p = fma(p, f, set1(1.4249323e-1f));
  p = fma(p, f, set1(-1.6668057e-1f));
  p = fma(p, f, set1(2.0000714e-1f));
  p = fma(p, f, set1(-2.4999994e-1f));
  p = fma(p, f, set1(3.3333331e-1f));
  Vec y = p * f * z;
  y = fma(e, set1(-2.12194440e-4f), y);
  y = fnma(z, set1(0.5f), y);
  y = f + y;
  return fma(e, set1(0.693359375f), y);
}

COLUBER_INLINE Vec sigmoidv(Vec x) { return set1(1.0f) / (set1(1.0f) + expv(zero() - x)); }
COLUBER_INLINE Vec siluv(Vec x) { return x / (set1(1.0f) + expv(zero() - x)); }
// log1p(exp(x)); x itself beyond 20, as mamba_ssm and vLLM have it.
COLUBER_INLINE Vec softplusv(Vec x) {
  Vec t = expv(min(x, set1(20.0f)));
  Vec u = set1(1.0f) + t;
  // log1p: the rounding of 1 + t is put back as (t - (u - 1)) / u.
  Vec y = logv(u) + (t - (u - set1(1.0f))) / u;
  return keep_nan(x, select_gt(x, set1(20.0f), x, y));
}
