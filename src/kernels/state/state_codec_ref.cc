// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "kernels/state/scaled_row.h"
#include "kernels/state/state_codec.h"

namespace coluber {
namespace {

constexpr int64_t kLanes16 = 16;
// 1.5 * 2^23: a float of this size ends at the units, so that adding it rounds to a whole number, ties to even.
constexpr float kUnits = 12582912.0f;

// Where element (o, c, n) lies in its state.
int64_t place(const StateCodecArgs& args, int64_t o, int64_t c, int64_t n) {
  const int64_t start = o * args.channels * args.inner;
  if (!args.lanes) return start + c * args.inner + n;
  const int64_t first = c / kLanes16 * kLanes16, width = std::min(kLanes16, args.channels - first);
  return start + first * args.inner + n * width + (c - first);
}

float* scales_at(const StateCodecArgs& args, int32_t slot) {
  return reinterpret_cast<float*>(static_cast<char*>(args.scales) + slot * args.codes.slot_stride_bytes);
}

template <typename Code>
void unpack_row(const StateCodecArgs& args, int64_t row) {
  float* values = args.values + row * args.elements();
  const auto* codes = static_cast<const Code*>(args.codes.source(row));
  if (codes == nullptr) {
    std::fill_n(values, args.elements(), 0.0f);
    return;
  }
  const float* scales = scales_at(args, args.codes.src[row * args.codes.index_stride]);
  for (int64_t o = 0; o < args.outer; ++o) {
    for (int64_t c = 0; c < args.channels; ++c) {
      for (int64_t n = 0; n < args.inner; ++n) {
        const int64_t i = place(args, o, c, n);
        values[i] = static_cast<float>(codes[i]) * scales[o * args.channels + c];
      }
    }
  }
}

template <typename Code>
void pack_row(const StateCodecArgs& args, int64_t row) {
  const float* values = args.values + row * args.elements();
  auto* codes = static_cast<Code*>(args.codes.target(row));
  float* scales = scales_at(args, args.codes.dst[row * args.codes.index_stride]);
  const float most = largest_code(args.codes.dtype);
  for (int64_t o = 0; o < args.outer; ++o) {
    for (int64_t c = 0; c < args.channels; ++c) {
      float largest = 0.0f;
      for (int64_t n = 0; n < args.inner; ++n) {
        const float magnitude = std::fabs(values[place(args, o, c, n)]);
        if (!(magnitude <= largest)) largest = magnitude;  // a NaN stays: nothing is above it
        if (std::isnan(largest)) break;
      }
      const RowScale scale = row_scale(largest, most);
      scales[o * args.channels + c] = scale.scale;
      for (int64_t n = 0; n < args.inner; ++n) {
        const int64_t i = place(args, o, c, n);
        const float code = scale.inverse == 0.0f ? 0.0f : std::fma(values[i], scale.inverse, kUnits) - kUnits;
        codes[i] = static_cast<Code>(std::clamp(code, -most, most));
      }
    }
  }
}

}  // namespace

void unpack_states_ref(const StateCodecArgs& args, ThreadPool&) {
  for (int64_t row = 0; row < args.rows; ++row) {
    if (args.codes.is_null(row)) continue;
    args.codes.dtype == DType::kInt16 ? unpack_row<int16_t>(args, row) : unpack_row<int8_t>(args, row);
  }
}

void pack_states_ref(const StateCodecArgs& args, ThreadPool&) {
  for (int64_t row = 0; row < args.rows; ++row) {
    if (args.codes.is_null(row)) continue;
    args.codes.dtype == DType::kInt16 ? pack_row<int16_t>(args, row) : pack_row<int8_t>(args, row);
  }
}

}  // namespace coluber
