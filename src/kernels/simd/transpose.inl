// SPDX-License-Identifier: Apache-2.0
// Copies of matrices of 32-bit elements with rows and columns exchanged.

COLUBER_INLINE void transpose_4x4(const float* in, int64_t in_stride, float* out, int64_t out_stride) {
  const __m128 a = _mm_loadu_ps(in), b = _mm_loadu_ps(in + in_stride);
  const __m128 c = _mm_loadu_ps(in + 2 * in_stride), d = _mm_loadu_ps(in + 3 * in_stride);
  const __m128 ab_low = _mm_unpacklo_ps(a, b), ab_high = _mm_unpackhi_ps(a, b);
  const __m128 cd_low = _mm_unpacklo_ps(c, d), cd_high = _mm_unpackhi_ps(c, d);
  _mm_storeu_ps(out, _mm_movelh_ps(ab_low, cd_low));
  _mm_storeu_ps(out + out_stride, _mm_movehl_ps(cd_low, ab_low));
  _mm_storeu_ps(out + 2 * out_stride, _mm_movelh_ps(ab_high, cd_high));
  _mm_storeu_ps(out + 3 * out_stride, _mm_movehl_ps(cd_high, ab_high));
}

// out[c, r] = in[r, c] for r < rows, c < columns. Columns outside: the lines of `out` fill up one after the other where
// its rows are short, and the rows of `in` are streams.
inline void transpose_into(const float* in, int64_t in_stride, int64_t rows, int64_t columns, float* out,
                           int64_t out_stride) {
  const int64_t whole_rows = rows / 4 * 4, whole_columns = columns / 4 * 4;
  for (int64_t c = 0; c < whole_columns; c += 4) {
    for (int64_t r = 0; r < whole_rows; r += 4) {
      transpose_4x4(in + r * in_stride + c, in_stride, out + c * out_stride + r, out_stride);
    }
    for (int64_t r = whole_rows; r < rows; ++r) {
      for (int64_t x = c; x < c + 4; ++x) std::memcpy(out + x * out_stride + r, in + r * in_stride + x, sizeof(float));
    }
  }
  for (int64_t c = whole_columns; c < columns; ++c) {
    for (int64_t r = 0; r < rows; ++r) std::memcpy(out + c * out_stride + r, in + r * in_stride + c, sizeof(float));
  }
}
