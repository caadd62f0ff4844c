// SPDX-License-Identifier: Apache-2.0
// Rows as codes and a scale (kernels/state/scaled_row.h) in loops that the compiler turns into the tier's vectors. A
// largest magnitude is looked for among the bits of floats without their sign, as whole numbers: NaN comes out on top.

COLUBER_INLINE uint32_t magnitude_bits(float value) { return __builtin_bit_cast(uint32_t, value) & 0x7fffffffu; }

inline float scaled_row_largest(const float* values, int64_t count) {
  uint32_t top = 0;
  for (int64_t i = 0; i < count; ++i) top = std::max(top, magnitude_bits(values[i]));
  return __builtin_bit_cast(float, top);
}

// The nearest whole number, ties to even, of |value * inverse| < 2^22: the low bits of a float that ends at the units.
// Fused, as in the reference: the product is not rounded before.
COLUBER_INLINE int32_t scaled_row_code(float value, float inverse, int32_t most) {
  const int32_t code = __builtin_bit_cast(int32_t, __builtin_fmaf(value, inverse, 12582912.0f)) - 0x4b400000;
  return std::clamp(code, -most, most);
}

template <typename Code>
inline void scaled_row_encode(const float* values, int64_t count, float inverse, Code* codes) {
  constexpr int32_t kMost = sizeof(Code) == 2 ? 32767 : 127;
  if (inverse == 0.0f) {
    std::memset(codes, 0, static_cast<size_t>(count) * sizeof(Code));
    return;
  }
  for (int64_t i = 0; i < count; ++i) codes[i] = static_cast<Code>(scaled_row_code(values[i], inverse, kMost));
}

template <typename Code>
inline void scaled_row_decode(const Code* codes, int64_t count, float scale, float* values) {
  for (int64_t i = 0; i < count; ++i) values[i] = static_cast<float>(codes[i]) * scale;
}

// float8_e4m3fn: its exponent and fraction at the top of a float32's are the number times 2^-120, exactly. The code of
// NaN is never stored: the scale is NaN there.
inline void scaled_row_decode_e4m3(const uint8_t* codes, int64_t count, float scale, float* values) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t code = codes[i];
    const uint32_t bits = (code & 0x80u) << 24 | (code & 0x7fu) << 20;
    values[i] = __builtin_bit_cast(float, bits) * 0x1p120f * scale;
  }
}
