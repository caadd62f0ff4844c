// SPDX-License-Identifier: Apache-2.0
//
// Element types of tensors and states. Names are those of PyTorch and of vLLM's configuration ("float32", "bfloat16").
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace coluber {

enum class DType : uint8_t {
  kFloat64,
  kFloat32,
  kFloat16,
  kBFloat16,
  kFloat8E4M3,  // "float8_e4m3fn"
  kFloat8E5M2,  // "float8_e5m2"
  kFloat8E8M0,  // "float8_e8m0fnu", a scale
  kInt64,
  kInt32,
  kInt16,
  kInt8,
  kInt4,  // two values a byte, low nibble first
  kUInt64,
  kUInt32,
  kUInt16,
  kUInt8,
  kBool,
};

int dtype_bits(DType dtype) noexcept;
// Bytes of one element. Throws Error(kInvalidArgument) for types narrower than a byte.
int64_t dtype_size(DType dtype);
// Bytes of `count` elements, rounded up to whole bytes; throws on overflow.
int64_t dtype_bytes(DType dtype, int64_t count);
std::string_view dtype_name(DType dtype) noexcept;
std::optional<DType> parse_dtype(std::string_view name) noexcept;
bool is_floating(DType dtype) noexcept;

}  // namespace coluber
