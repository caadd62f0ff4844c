// SPDX-License-Identifier: Apache-2.0
#include "kernels/quant/scaled_types.h"

#include <array>
#include <bit>
#include <mutex>
#include <string_view>

#include "base/block_type.h"
#include "base/dtype.h"
#include "base/error.h"
#include "kernels/quant/block_decoders.h"
#include "kernels/quant/panel_form.h"

namespace coluber {
namespace {

constexpr int kNumGroups = 4;  // 16, 32, 64, 128
constexpr std::string_view kNames[kNumScaledCodes][kNumGroups] = {
    {"E4M3_G16", "E4M3_G32", "E4M3_G64", "E4M3_G128"}, {"E5M2_G16", "E5M2_G32", "E5M2_G64", "E5M2_G128"},
    {"INT8_G16", "INT8_G32", "INT8_G64", "INT8_G128"}, {"UINT8_G16", "UINT8_G32", "UINT8_G64", "UINT8_G128"},
    {"INT4_G16", "INT4_G32", "INT4_G64", "INT4_G128"}, {"UINT4_G16", "UINT4_G32", "UINT4_G64", "UINT4_G128"},
    {"NF4_G16", "NF4_G32", "NF4_G64", "NF4_G128"},     {"FP4_G16", "FP4_G32", "FP4_G64", "FP4_G128"},
    {"E2M1_G16", "E2M1_G32", "E2M1_G64", "E2M1_G128"},
};

// As bitsandbytes writes them into quant_map, to the last digit of a float32.
constexpr float kNf4Values[16] = {-1.0f,
                                  -0.6961928009986877f,
                                  -0.5250730514526367f,
                                  -0.39491748809814453f,
                                  -0.28444138169288635f,
                                  -0.18477343022823334f,
                                  -0.09105003625154495f,
                                  0.0f,
                                  0.07958029955625534f,
                                  0.16093020141124725f,
                                  0.24611230194568634f,
                                  0.33791524171829224f,
                                  0.44070982933044434f,
                                  0.5626170039176941f,
                                  0.7229568362236023f,
                                  1.0f};
constexpr float kFp4Values[16] = {0.0f,
                                  0.0052083334885537624f,
                                  0.6666666865348816f,
                                  1.0f,
                                  0.3333333432674408f,
                                  0.5f,
                                  0.1666666716337204f,
                                  0.25f,
                                  0.0f,
                                  -0.0052083334885537624f,
                                  -0.6666666865348816f,
                                  -1.0f,
                                  -0.3333333432674408f,
                                  -0.5f,
                                  -0.1666666716337204f,
                                  -0.25f};
constexpr float kFloat4Values[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};

int index_of(int64_t group) noexcept {
  const bool fine = group >= kSmallestScaledGroup && group <= kLargestScaledGroup &&
                    std::has_single_bit(static_cast<uint64_t>(group));
  return fine ? std::countr_zero(static_cast<uint64_t>(group)) - 4 : -1;
}

using Values = std::array<float, 256>;

float value_of(ScaledCode code, int i) {
  const auto byte = static_cast<uint8_t>(i);
  switch (code) {
    case ScaledCode::kFloat8E4M3:
      return float8_e4m3_to_float(byte);
    case ScaledCode::kFloat8E5M2:
      return float8_e5m2_to_float(byte);
    case ScaledCode::kInt8:
      return static_cast<float>(static_cast<int8_t>(byte));
    case ScaledCode::kUInt8:
    case ScaledCode::kUInt4:
      return static_cast<float>(i);
    case ScaledCode::kInt4:
      return static_cast<float>(i - 8);
    case ScaledCode::kNf4:
      return kNf4Values[i];
    case ScaledCode::kFp4:
      return kFp4Values[i];
    case ScaledCode::kFloat4E2M1:
      return kFloat4Values[i & 7] * (i < 8 ? 1.0f : -1.0f);
  }
  return 0.0f;
}

const std::array<Values, kNumScaledCodes>& all_values() {
  static const auto kAll = [] {
    std::array<Values, kNumScaledCodes> all{};
    for (int c = 0; c < kNumScaledCodes; ++c) {
      const auto code = static_cast<ScaledCode>(c);
      for (int i = 0; i < 1 << scaled_code_bits(code); ++i)
        all[static_cast<size_t>(c)][static_cast<size_t>(i)] = value_of(code, i);
    }
    return all;
  }();
  return kAll;
}

template <ScaledCode kCode, int64_t kGroup>
void decode(const std::byte* blocks, int64_t count, float* out) {
  const float* values = scaled_code_values(kCode);
  constexpr int64_t kBytes = scaled_block_bytes({kCode, kGroup});
  for (int64_t b = 0; b < count; ++b, blocks += kBytes, out += kGroup) {
    const auto scale = word_at<float>(blocks, 0);
    const float zero = scaled_code_has_zero(kCode) ? static_cast<float>(byte_at(blocks, 4)) : 0.0f;
    const std::byte* codes = blocks + scaled_codes_offset(kCode);
    for (int64_t i = 0; i < kGroup; ++i) {
      const uint8_t code = scaled_code_bits(kCode) == 8 ? byte_at(codes, i) : nibble_at(codes, i);
      out[i] = scale * (values[code] - zero);
    }
  }
}

template <ScaledCode kCode>
constexpr std::array<BlockDecoder*, kNumGroups> kDecodersOf = {decode<kCode, 16>, decode<kCode, 32>, decode<kCode, 64>,
                                                               decode<kCode, 128>};
constexpr std::array<std::array<BlockDecoder*, kNumGroups>, kNumScaledCodes> kDecoders = {
    kDecodersOf<ScaledCode::kFloat8E4M3>, kDecodersOf<ScaledCode::kFloat8E5M2>, kDecodersOf<ScaledCode::kInt8>,
    kDecodersOf<ScaledCode::kUInt8>,      kDecodersOf<ScaledCode::kInt4>,       kDecodersOf<ScaledCode::kUInt4>,
    kDecodersOf<ScaledCode::kNf4>,        kDecodersOf<ScaledCode::kFp4>,        kDecodersOf<ScaledCode::kFloat4E2M1>};

}  // namespace

const float* scaled_code_values(ScaledCode code) noexcept { return all_values()[static_cast<size_t>(code)].data(); }

DType scaled_dtype(const ScaledType& type) {
  static std::mutex registering;
  const int group = index_of(type.group);
  if (group < 0)
    throw make_error(ErrorCode::kInvalidArgument, "groups of {} elements: expected 16, 32, 64 or 128", type.group);
  const auto code = static_cast<size_t>(type.code);
  const std::string_view name = kNames[code][group];
  const std::lock_guard lock(registering);
  if (const std::optional<DType> known = parse_block_type(name)) return *known;
  return register_block_type({name, type.group, scaled_block_bytes(type), kDecoders[code][static_cast<size_t>(group)],
                              scaled_panel_form(type)});
}

std::optional<ScaledType> find_scaled_type(DType dtype) noexcept {
  const BlockType* type = find_block_type(dtype);
  if (type == nullptr || index_of(type->elements) < 0) return std::nullopt;
  for (int c = 0; c < kNumScaledCodes; ++c)
    if (kNames[c][index_of(type->elements)] == type->name)
      return ScaledType{static_cast<ScaledCode>(c), type->elements};
  return std::nullopt;
}

}  // namespace coluber
