// SPDX-License-Identifier: Apache-2.0
// Channels [begin, end) of one outer part of one state; with lanes `begin` is a multiple of 16.
#include "kernels/simd/scaled_rows.inl"

template <typename Code>
inline void state_pack_rows(const float* values, int64_t begin, int64_t end, int64_t inner, Code* codes,
                            float* scales) {
  for (int64_t c = begin; c < end; ++c) {
    const RowScale scale = row_scale(scaled_row_largest(values + c * inner, inner), sizeof(Code) == 2 ? 32767 : 127);
    scales[c] = scale.scale;
    scaled_row_encode(values + c * inner, inner, scale.inverse, codes + c * inner);
  }
}

template <typename Code>
inline void state_unpack_rows(const Code* codes, const float* scales, int64_t begin, int64_t end, int64_t inner,
                              float* values) {
  for (int64_t c = begin; c < end; ++c) scaled_row_decode(codes + c * inner, inner, scales[c], values + c * inner);
}

// `width` channels with their elements side by side, [inner][width].
template <typename Code, int kWidth>
inline void state_pack_block(const float* values, int64_t inner, int width, Code* codes, float* scales) {
  constexpr int32_t kMost = sizeof(Code) == 2 ? 32767 : 127;
  const int lanes = kWidth > 0 ? kWidth : width;
  uint32_t top[16] = {};
  for (int64_t n = 0; n < inner; ++n) {
    for (int i = 0; i < lanes; ++i) top[i] = std::max(top[i], magnitude_bits(values[n * lanes + i]));
  }
  float inverse[16];
  uint32_t keep[16];
  for (int i = 0; i < lanes; ++i) {
    const RowScale scale = row_scale(__builtin_bit_cast(float, top[i]), static_cast<float>(kMost));
    scales[i] = scale.scale;
    inverse[i] = scale.inverse;
    keep[i] = scale.inverse == 0.0f ? 0 : ~0u;
  }
  for (int64_t n = 0; n < inner; ++n) {
    for (int i = 0; i < lanes; ++i) {
      const float value = __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, values[n * lanes + i]) & keep[i]);
      codes[n * lanes + i] = static_cast<Code>(scaled_row_code(value, inverse[i], kMost));
    }
  }
}

template <typename Code, int kWidth>
inline void state_unpack_block(const Code* codes, const float* scales, int64_t inner, int width, float* values) {
  const int lanes = kWidth > 0 ? kWidth : width;
  float scale[16] = {};
  for (int i = 0; i < lanes; ++i) scale[i] = scales[i];
  for (int64_t n = 0; n < inner; ++n) {
    for (int i = 0; i < lanes; ++i) values[n * lanes + i] = static_cast<float>(codes[n * lanes + i]) * scale[i];
  }
}

template <typename Code>
inline void state_codec_part(bool pack, bool lanes, float* values, Code* codes, float* scales, int64_t begin,
                             int64_t end, int64_t inner) {
  if (!lanes) {
    pack ? state_pack_rows(values, begin, end, inner, codes, scales)
         : state_unpack_rows(codes, scales, begin, end, inner, values);
    return;
  }
  for (int64_t c = begin; c < end; c += 16) {
    const int width = static_cast<int>(std::min<int64_t>(16, end - c));
    float* v = values + c * inner;
    Code* q = codes + c * inner;
    if (pack) {
      width == 16 ? state_pack_block<Code, 16>(v, inner, 16, q, scales + c)
                  : state_pack_block<Code, 0>(v, inner, width, q, scales + c);
    } else {
      width == 16 ? state_unpack_block<Code, 16>(q, scales + c, inner, 16, v)
                  : state_unpack_block<Code, 0>(q, scales + c, inner, width, v);
    }
  }
}

void state_codec_task(bool pack, DType dtype, bool lanes, float* values, void* codes, float* scales, int64_t begin,
                      int64_t end, int64_t inner) {
  if (dtype == DType::kInt16)
    state_codec_part(pack, lanes, values, static_cast<int16_t*>(codes), scales, begin, end, inner);
  else
    state_codec_part(pack, lanes, values, static_cast<int8_t*>(codes), scales, begin, end, inner);
}
