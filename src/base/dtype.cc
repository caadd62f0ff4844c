// SPDX-License-Identifier: Apache-2.0
#include "base/dtype.h"

#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/block_type.h"
#include "base/error.h"

namespace coluber {
namespace {

struct DTypeRow {
  DType dtype;
  int bits;
  std::string_view name;
  bool floating;
};

// In the order of the enum.
constexpr std::array<DTypeRow, 17> kRows = {{
    {DType::kFloat64, 64, "float64", true},
    {DType::kFloat32, 32, "float32", true},
    {DType::kFloat16, 16, "float16", true},
    {DType::kBFloat16, 16, "bfloat16", true},
    {DType::kFloat8E4M3, 8, "float8_e4m3fn", true},
    {DType::kFloat8E5M2, 8, "float8_e5m2", true},
    {DType::kFloat8E8M0, 8, "float8_e8m0fnu", true},
    {DType::kInt64, 64, "int64", false},
    {DType::kInt32, 32, "int32", false},
    {DType::kInt16, 16, "int16", false},
    {DType::kInt8, 8, "int8", false},
    {DType::kInt4, 4, "int4", false},
    {DType::kUInt64, 64, "uint64", false},
    {DType::kUInt32, 32, "uint32", false},
    {DType::kUInt16, 16, "uint16", false},
    {DType::kUInt8, 8, "uint8", false},
    {DType::kBool, 8, "bool", false},
}};

const DTypeRow& row(DType dtype) noexcept { return kRows[static_cast<size_t>(dtype)]; }

}  // namespace

int dtype_bits(DType dtype) noexcept {
  const BlockType* blocks = find_block_type(dtype);
  return blocks == nullptr ? row(dtype).bits
                           : static_cast<int>((8 * blocks->bytes + blocks->elements - 1) / blocks->elements);
}

int64_t dtype_size(DType dtype) {
  if (const BlockType* blocks = find_block_type(dtype)) {
    throw make_error(ErrorCode::kInvalidArgument,
                     "an element of type {} has no bytes of its own: they come in blocks of {}", blocks->name,
                     blocks->elements);
  }
  const DTypeRow& entry = row(dtype);
  if (entry.bits < 8) {
    throw make_error(ErrorCode::kInvalidArgument, "an element of type {} is narrower than a byte", entry.name);
  }
  return entry.bits / 8;
}

int64_t dtype_bytes(DType dtype, int64_t count) {
  if (const BlockType* blocks = find_block_type(dtype)) {
    int64_t bytes = 0;
    if (count < 0 || count % blocks->elements != 0 ||
        __builtin_mul_overflow(count / blocks->elements, blocks->bytes, &bytes)) {
      throw make_error(ErrorCode::kInvalidArgument,
                       "the bytes of {} elements of type {} cannot be counted; expected a multiple of {}", count,
                       blocks->name, blocks->elements);
    }
    return bytes;
  }
  const int64_t bits = row(dtype).bits;
  int64_t total = 0;
  if (count < 0 || (bits >= 8 && __builtin_mul_overflow(count, bits / 8, &total))) {
    throw make_error(ErrorCode::kInvalidArgument, "the bytes of {} elements of type {} cannot be counted", count,
                     row(dtype).name);
  }
  return bits >= 8 ? total : count / (8 / bits) + (count % (8 / bits) != 0 ? 1 : 0);
}

std::string_view dtype_name(DType dtype) noexcept {
  const BlockType* blocks = find_block_type(dtype);
  return blocks == nullptr ? row(dtype).name : blocks->name;
}

std::optional<DType> parse_dtype(std::string_view name) noexcept {
  if (name.substr(0, 6) == "torch.") name.remove_prefix(6);
  for (const DTypeRow& entry : kRows) {
    if (name == entry.name) return entry.dtype;
  }
  struct Alias {
    std::string_view name;
    DType dtype;
  };
  // vLLM's and PyTorch's other spellings.
  static constexpr std::array<Alias, 9> kAliases = {{{"half", DType::kFloat16},
                                                     {"float", DType::kFloat32},
                                                     {"double", DType::kFloat64},
                                                     {"fp32", DType::kFloat32},
                                                     {"fp16", DType::kFloat16},
                                                     {"bf16", DType::kBFloat16},
                                                     {"fp8", DType::kFloat8E4M3},
                                                     {"fp8_e4m3", DType::kFloat8E4M3},
                                                     {"fp8_e5m2", DType::kFloat8E5M2}}};
  for (const Alias& alias : kAliases) {
    if (name == alias.name) return alias.dtype;
  }
  return parse_block_type(name);
}

bool is_floating(DType dtype) noexcept { return find_block_type(dtype) != nullptr || row(dtype).floating; }

namespace {

// A format of 1 sign, `exponent` and `mantissa` bits to float32. All 16-bit and 8-bit values are float32 normals or
// zero.
float widen(uint32_t bits, int exponent_bits, int mantissa_bits) noexcept {
  const uint32_t mantissa = bits & ((1U << mantissa_bits) - 1);
  const int exponent = static_cast<int>((bits >> mantissa_bits) & ((1U << exponent_bits) - 1));
  const bool negative = ((bits >> (exponent_bits + mantissa_bits)) & 1) != 0;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const float magnitude =
      exponent == 0 ? std::ldexp(static_cast<float>(mantissa), 1 - bias - mantissa_bits)
                    : std::ldexp(static_cast<float>(mantissa | (1U << mantissa_bits)), exponent - bias - mantissa_bits);
  return negative ? -magnitude : magnitude;
}

// The magnitude of `value` (finite) in a format, as its exponent and mantissa bits, rounded to nearest even. May run
// one past the largest exponent: the caller knows what its format does there.
uint32_t narrow_magnitude(float value, int exponent_bits, int mantissa_bits) noexcept {
  const uint32_t bits = std::bit_cast<uint32_t>(value) & 0x7fffffffU;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = static_cast<int>(bits >> 23) - 127 + bias;
  const uint32_t mantissa = bits < 0x00800000U ? bits & 0x7fffffU : (bits & 0x7fffffU) | 0x800000U;
  // A subnormal result loses one more bit for each step below the smallest exponent.
  const int shift = 23 - mantissa_bits + (exponent < 1 ? 1 - exponent : 0);
  if (shift > 25) return 0;
  const uint32_t kept = mantissa >> shift;
  const uint32_t rest = mantissa & ((1U << shift) - 1), half = 1U << (shift - 1);
  const uint32_t rounded = kept + ((rest > half || (rest == half && (kept & 1) != 0)) ? 1 : 0);
  // The hidden bit of a normal adds one to the exponent field, and so does a carry out of the mantissa.
  return exponent < 1 ? rounded : (static_cast<uint32_t>(exponent - 1) << mantissa_bits) + rounded;
}

uint32_t sign_at(float value, int position) noexcept { return (std::bit_cast<uint32_t>(value) >> 31) << position; }

template <typename T>
T load(const std::byte* data, int64_t index) noexcept {
  T value;
  std::memcpy(&value, data + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

template <typename T, typename Convert>
void convert_each(const std::byte* data, int64_t count, float* out, Convert convert) {
  for (int64_t i = 0; i < count; ++i) out[i] = convert(load<T>(data, i));
}

template <typename T>
void cast_each(const std::byte* data, int64_t count, float* out) {
  convert_each<T>(data, count, out, [](T value) { return static_cast<float>(value); });
}

template <typename T, typename Convert>
void narrow_each(const float* values, int64_t count, std::byte* out, Convert convert) {
  for (int64_t i = 0; i < count; ++i) {
    const T value = convert(values[i]);
    std::memcpy(out + i * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
  }
}

}  // namespace

float float16_to_float(uint16_t bits) noexcept {
  if ((bits & 0x7c00) != 0x7c00) return widen(bits, 5, 10);
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t payload = static_cast<uint32_t>(bits & 0x3ff) << 13;
  return std::bit_cast<float>(sign | 0x7f800000U | payload | (payload != 0 ? 0x400000U : 0));
}

uint16_t float_to_float16(float value) noexcept {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = sign_at(value, 15);
  if (std::isnan(value)) return static_cast<uint16_t>(sign | 0x7e00 | ((bits >> 13) & 0x3ff));
  // Halfway between the largest finite value and the next one rounds to the even one, which is infinity.
  if (std::fabs(value) >= 65520.0F) return static_cast<uint16_t>(sign | 0x7c00);
  return static_cast<uint16_t>(sign | narrow_magnitude(value, 5, 10));
}

float float8_e4m3_to_float(uint8_t bits) noexcept {
  if ((bits & 0x7f) == 0x7f)
    return std::copysign(std::numeric_limits<float>::quiet_NaN(), (bits & 0x80) != 0 ? -1.0F : 1.0F);
  return widen(bits, 4, 3);
}

uint8_t float_to_float8_e4m3(float value) noexcept {
  const uint32_t sign = sign_at(value, 7);
  // 448 is the largest; 464 is halfway to where the next would be, and ties go to the even 448.
  if (std::isnan(value) || std::fabs(value) > 464.0F) return static_cast<uint8_t>(sign | 0x7f);
  return static_cast<uint8_t>(sign | narrow_magnitude(value, 4, 3));
}

float float8_e5m2_to_float(uint8_t bits) noexcept { return float16_to_float(static_cast<uint16_t>(bits << 8)); }

uint8_t float_to_float8_e5m2(float value) noexcept {
  const uint32_t sign = sign_at(value, 7);
  if (std::isnan(value)) return static_cast<uint8_t>(sign | 0x7f);
  if (std::fabs(value) >= 61440.0F) return static_cast<uint8_t>(sign | 0x7c);
  return static_cast<uint8_t>(sign | narrow_magnitude(value, 5, 2));
}

float float8_e8m0_to_float(uint8_t bits) noexcept {
  if (bits == 0xff) return std::numeric_limits<float>::quiet_NaN();
  return std::ldexp(1.0F, static_cast<int>(bits) - 127);
}

uint8_t float_to_float8_e8m0(float value) noexcept {
  if (!std::isfinite(value)) return 0xff;
  if (value <= 0.0F) return 0;
  int exponent = 0;
  const float fraction = std::frexp(value, &exponent);  // value = fraction * 2^exponent, 0.5 <= fraction < 1
  // 1.5 is halfway between two powers; the even exponent field wins.
  int field = exponent - 1 + 127;
  if (fraction > 0.75F || (fraction == 0.75F && (field & 1) != 0)) ++field;
  return static_cast<uint8_t>(field < 0 ? 0 : field > 254 ? 254 : field);
}

void convert_to_float(const void* data, DType dtype, int64_t count, float* out) {
  const auto* bytes = static_cast<const std::byte*>(data);
  if (const BlockType* blocks = find_block_type(dtype)) {
    COLUBER_CHECK(count % blocks->elements == 0, "{} elements of type {} are no whole blocks of {}", count,
                  blocks->name, blocks->elements);
    return blocks->to_float(bytes, count / blocks->elements, out);
  }
  switch (dtype) {
    case DType::kFloat64:
      return cast_each<double>(bytes, count, out);
    case DType::kFloat32:
      if (count > 0) std::memcpy(out, data, static_cast<size_t>(count) * sizeof(float));
      return;
    case DType::kFloat16:
      return convert_each<uint16_t>(bytes, count, out, float16_to_float);
    case DType::kBFloat16:
      return convert_each<uint16_t>(bytes, count, out, bfloat16_to_float);
    case DType::kFloat8E4M3:
      return convert_each<uint8_t>(bytes, count, out, float8_e4m3_to_float);
    case DType::kFloat8E5M2:
      return convert_each<uint8_t>(bytes, count, out, float8_e5m2_to_float);
    case DType::kFloat8E8M0:
      return convert_each<uint8_t>(bytes, count, out, float8_e8m0_to_float);
    case DType::kInt64:
      return cast_each<int64_t>(bytes, count, out);
    case DType::kInt32:
      return cast_each<int32_t>(bytes, count, out);
    case DType::kInt16:
      return cast_each<int16_t>(bytes, count, out);
    case DType::kInt8:
      return cast_each<int8_t>(bytes, count, out);
    case DType::kInt4:
      for (int64_t i = 0; i < count; ++i) {
        const auto byte = load<uint8_t>(bytes, i / 2);
        out[i] = static_cast<float>(i % 2 == 0 ? int4_low(byte) : int4_high(byte));
      }
      return;
    case DType::kUInt64:
      return cast_each<uint64_t>(bytes, count, out);
    case DType::kUInt32:
      return cast_each<uint32_t>(bytes, count, out);
    case DType::kUInt16:
      return cast_each<uint16_t>(bytes, count, out);
    case DType::kUInt8:
      return cast_each<uint8_t>(bytes, count, out);
    case DType::kBool:
      return convert_each<uint8_t>(bytes, count, out, [](uint8_t v) { return v != 0 ? 1.0F : 0.0F; });
  }
}

void convert_from_float(const float* values, int64_t count, DType dtype, void* out) {
  auto* bytes = static_cast<std::byte*>(out);
  switch (dtype) {
    case DType::kFloat64:
      return narrow_each<double>(values, count, bytes, [](float v) { return static_cast<double>(v); });
    case DType::kFloat32:
      return narrow_each<float>(values, count, bytes, [](float v) { return v; });
    case DType::kFloat16:
      return narrow_each<uint16_t>(values, count, bytes, float_to_float16);
    case DType::kBFloat16:
      return narrow_each<uint16_t>(values, count, bytes, float_to_bfloat16);
    case DType::kFloat8E4M3:
      return narrow_each<uint8_t>(values, count, bytes, float_to_float8_e4m3);
    case DType::kFloat8E5M2:
      return narrow_each<uint8_t>(values, count, bytes, float_to_float8_e5m2);
    case DType::kFloat8E8M0:
      return narrow_each<uint8_t>(values, count, bytes, float_to_float8_e8m0);
    default:
      break;
  }
  throw make_error(ErrorCode::kUnsupported, "float32 values cannot be stored as {}; expected a floating type",
                   dtype_name(dtype));
}

}  // namespace coluber
