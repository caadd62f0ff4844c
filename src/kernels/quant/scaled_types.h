// SPDX-License-Identifier: Apache-2.0
//
// The block types of quantised Hugging Face checkpoints (GPTQ, AWQ, compressed-tensors, FP8, bitsandbytes): G
// successive elements of a row share one scale and, in some kinds, one zero point. Each pair of a code and a G is a
// type of its own (base/block_type.h) with a name such as "INT4_G128". Who reads a checkpoint brings every scheme into
// this form (formats/quantized_weights.h); nothing here knows a scheme, and nothing here quantises. Registration may
// happen on any thread.
//
//   block = [scale: float32][zero point: uint8, only where scaled_code_has_zero][codes: G of 4 or 8 bits]
//   value_i = scale * (scaled_code_values(code)[code_i] - zero point)     the difference is exact: one rounding
//
// Nothing is padded, blocks lie at any address. Codes stand in order of k, two a byte with the lower nibble first where
// they have 4 bits. No scale is ever folded: a scale of a whole row or matrix stands in each of its blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "coluber/dtype.h"

namespace coluber {

enum class ScaledCode : uint8_t {
  kFloat8E4M3,  // "E4M3_G128": 8 bits, float8_e4m3fn
  kFloat8E5M2,  // "E5M2_G128": 8 bits
  kInt8,        // "INT8_G128": 8 bits, two's complement, -128 to 127
  kUInt8,       // "UINT8_G128": 8 bits, 0 to 255, less the zero point
  kInt4,        // "INT4_G128": 4 bits, code - 8
  kUInt4,       // "UINT4_G128": 4 bits, 0 to 15, less the zero point
  kNf4,         // "NF4_G64": 4 bits, the quantiles of a normal distribution of QLoRA
  kFp4,         // "FP4_G64": 4 bits, the float of bitsandbytes: sign and 0 1/192 2/3 1 1/3 1/2 1/6 1/4
  kFloat4E2M1,  // "E2M1_G32": 4 bits, the float of MXFP4 and NVFP4: sign and 0 0.5 1 1.5 2 3 4 6
};
inline constexpr int kNumScaledCodes = 9;

// Powers of two, so that blocks divide every stretch of a row that products decode at once.
inline constexpr int64_t kSmallestScaledGroup = 16;
inline constexpr int64_t kLargestScaledGroup = 128;

struct ScaledType {
  ScaledCode code = ScaledCode::kInt8;
  int64_t group = 0;  // G: 16, 32, 64 or 128
};

constexpr int scaled_code_bits(ScaledCode code) noexcept { return code <= ScaledCode::kUInt8 ? 8 : 4; }
constexpr bool scaled_code_has_zero(ScaledCode code) noexcept {
  return code == ScaledCode::kUInt8 || code == ScaledCode::kUInt4;
}
// Where the codes of a block begin.
constexpr int64_t scaled_codes_offset(ScaledCode code) noexcept { return scaled_code_has_zero(code) ? 5 : 4; }
constexpr int64_t scaled_block_bytes(const ScaledType& type) noexcept {
  return scaled_codes_offset(type.code) + type.group * scaled_code_bits(type.code) / 8;
}

// What each code stands for before zero point and scale: 256 or 16 values, by code.
const float* scaled_code_values(ScaledCode code) noexcept;

// Registers the type on first use. Throws Error(kInvalidArgument) for a G that is none of the four.
DType scaled_dtype(const ScaledType& type);
// Nothing for other types.
std::optional<ScaledType> find_scaled_type(DType dtype) noexcept;

}  // namespace coluber
