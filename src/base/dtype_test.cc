// SPDX-License-Identifier: Apache-2.0
#include "base/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"

namespace coluber {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr DType kAll[] = {DType::kFloat64,    DType::kFloat32,    DType::kFloat16, DType::kBFloat16, DType::kFloat8E4M3,
                          DType::kFloat8E5M2, DType::kFloat8E8M0, DType::kInt64,   DType::kInt32,    DType::kInt16,
                          DType::kInt8,       DType::kInt4,       DType::kUInt64,  DType::kUInt32,   DType::kUInt16,
                          DType::kUInt8,      DType::kBool};

// The narrow type as its list of values, so that rounding can be judged by search instead of by the same bit tricks.
struct NarrowType {
  const char* name;
  int count;  // of bit patterns
  float (*widen)(uint32_t);
  uint32_t (*narrow)(float);
};
const NarrowType kNarrow[] = {
    {"bfloat16", 65536, [](uint32_t b) { return bfloat16_to_float(static_cast<uint16_t>(b)); },
     [](float v) -> uint32_t { return float_to_bfloat16(v); }},
    {"float16", 65536, [](uint32_t b) { return float16_to_float(static_cast<uint16_t>(b)); },
     [](float v) -> uint32_t { return float_to_float16(v); }},
    {"e4m3", 256, [](uint32_t b) { return float8_e4m3_to_float(static_cast<uint8_t>(b)); },
     [](float v) -> uint32_t { return float_to_float8_e4m3(v); }},
    {"e5m2", 256, [](uint32_t b) { return float8_e5m2_to_float(static_cast<uint8_t>(b)); },
     [](float v) -> uint32_t { return float_to_float8_e5m2(v); }},
};

TEST(DTypes, NamesAreReadBack) {
  for (const DType dtype : kAll) EXPECT_EQ(parse_dtype(dtype_name(dtype)), dtype);
  EXPECT_EQ(parse_dtype("torch.bfloat16"), DType::kBFloat16);
  EXPECT_EQ(parse_dtype("half"), DType::kFloat16);
  EXPECT_EQ(parse_dtype("float8"), std::nullopt);
  EXPECT_EQ(parse_dtype(""), std::nullopt);
}

TEST(DTypes, CountBytesAndRefuseOverflow) {
  EXPECT_EQ(dtype_bytes(DType::kFloat32, 3), 12);
  EXPECT_EQ(dtype_bytes(DType::kInt4, 3), 2);
  EXPECT_EQ(dtype_bytes(DType::kInt4, INT64_MAX), INT64_MAX / 2 + 1);
  EXPECT_EQ(dtype_size(DType::kFloat64), 8);
  EXPECT_THROW(dtype_size(DType::kInt4), Error);
  EXPECT_THROW(dtype_bytes(DType::kFloat32, INT64_MAX / 2), Error);
  EXPECT_THROW(dtype_bytes(DType::kInt8, -1), Error);
}

TEST(DTypes, EveryNarrowValueSurvivesTheRoundTrip) {
  for (const NarrowType& type : kNarrow) {
    for (int bits = 0; bits < type.count; ++bits) {
      const float value = type.widen(static_cast<uint32_t>(bits));
      const uint32_t back = type.narrow(value);
      if (std::isnan(value)) {
        EXPECT_TRUE(std::isnan(type.widen(back))) << type.name << " " << bits;
      } else {
        ASSERT_EQ(back, static_cast<uint32_t>(bits)) << type.name << " value " << value;
      }
    }
  }
}

TEST(DTypes, RoundingPicksTheNearestAndTheEvenOnTies) {
  for (const NarrowType& type : kNarrow) {
    const int positive = type.count / 2;
    for (int bits = 0; bits + 1 < positive; ++bits) {
      const float low = type.widen(static_cast<uint32_t>(bits)), high = type.widen(static_cast<uint32_t>(bits + 1));
      if (!std::isfinite(low) || !std::isfinite(high)) continue;
      const float middle = static_cast<float>((static_cast<double>(low) + static_cast<double>(high)) / 2);
      const auto even = static_cast<uint32_t>(bits % 2 == 0 ? bits : bits + 1);
      ASSERT_EQ(type.narrow(middle), even) << type.name << " between " << low << " and " << high;
      ASSERT_EQ(type.narrow(std::nextafter(middle, low)), static_cast<uint32_t>(bits)) << type.name;
      ASSERT_EQ(type.narrow(std::nextafter(middle, high)), static_cast<uint32_t>(bits + 1)) << type.name;
      ASSERT_EQ(type.narrow(-middle), even | static_cast<uint32_t>(positive)) << type.name;
    }
  }
}

TEST(DTypes, KnownValues) {
  EXPECT_EQ(float16_to_float(0x3c00), 1.0F);
  EXPECT_EQ(float16_to_float(0x0001), std::ldexp(1.0F, -24));
  EXPECT_EQ(float16_to_float(0x7bff), 65504.0F);
  EXPECT_EQ(bfloat16_to_float(0x3f80), 1.0F);
  EXPECT_EQ(float8_e4m3_to_float(0x7e), 448.0F);
  EXPECT_EQ(float8_e4m3_to_float(0x01), std::ldexp(1.0F, -9));
  EXPECT_EQ(float8_e5m2_to_float(0x7b), 57344.0F);
  EXPECT_EQ(float8_e5m2_to_float(0x01), std::ldexp(1.0F, -16));
  EXPECT_EQ(float8_e8m0_to_float(127), 1.0F);
  EXPECT_EQ(float8_e8m0_to_float(0), std::ldexp(1.0F, -127));
  EXPECT_TRUE(std::isnan(float8_e8m0_to_float(255)));
}

TEST(DTypes, OverflowGoesWhereTheFormatSays) {
  EXPECT_EQ(float_to_float16(65519.0F), 0x7bff);
  EXPECT_EQ(float_to_float16(65520.0F), 0x7c00);
  EXPECT_EQ(float_to_float16(-kInf), 0xfc00);
  EXPECT_EQ(float_to_bfloat16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(float_to_bfloat16(kInf), 0x7f80);
  EXPECT_EQ(float_to_float8_e5m2(61439.0F), 0x7b);
  EXPECT_EQ(float_to_float8_e5m2(61440.0F), 0x7c);
  EXPECT_EQ(float_to_float8_e4m3(464.0F), 0x7e);
  EXPECT_EQ(float_to_float8_e4m3(465.0F), 0x7f);
  EXPECT_EQ(float_to_float8_e4m3(-kInf), 0xff);
  EXPECT_EQ(float_to_float8_e8m0(kInf), 0xff);
}

TEST(DTypes, NaNStaysNaN) {
  EXPECT_TRUE(std::isnan(bfloat16_to_float(float_to_bfloat16(kNaN))));
  // A payload in the bits that are cut off must not turn into an infinity.
  EXPECT_TRUE(std::isnan(bfloat16_to_float(float_to_bfloat16(std::bit_cast<float>(0x7f800001U)))));
  EXPECT_TRUE(std::isnan(float16_to_float(float_to_float16(std::bit_cast<float>(0x7f800001U)))));
  EXPECT_TRUE(std::isnan(float8_e4m3_to_float(float_to_float8_e4m3(kNaN))));
  EXPECT_TRUE(std::isnan(float8_e5m2_to_float(float_to_float8_e5m2(kNaN))));
}

TEST(DTypes, PowersOfTwoRoundToTheNearest) {
  EXPECT_EQ(float_to_float8_e8m0(1.0F), 127);
  EXPECT_EQ(float_to_float8_e8m0(1.49F), 127);
  EXPECT_EQ(float_to_float8_e8m0(1.51F), 128);
  EXPECT_EQ(float_to_float8_e8m0(1.5F), 128);  // between 127 and 128: the even field
  EXPECT_EQ(float_to_float8_e8m0(3.0F), 128);  // between 128 and 129
  EXPECT_EQ(float_to_float8_e8m0(0.0F), 0);
  EXPECT_EQ(float_to_float8_e8m0(std::numeric_limits<float>::max()), 254 + 1 - 1);
}

TEST(DTypes, EveryTypeConvertsToFloat) {
  const auto values = [](const void* data, DType dtype, int64_t count) {
    std::vector<float> out(static_cast<size_t>(count), -99.0F);
    convert_to_float(data, dtype, count, out.data());
    return out;
  };
  const double f64[] = {0.5, -3};
  EXPECT_EQ(values(f64, DType::kFloat64, 2), (std::vector<float>{0.5F, -3}));
  const int64_t i64[] = {INT64_MIN, 16777217};
  EXPECT_EQ(values(i64, DType::kInt64, 2), (std::vector<float>{-9223372036854775808.0F, 16777216.0F}));
  const uint64_t u64[] = {UINT64_MAX};
  EXPECT_EQ(values(u64, DType::kUInt64, 1), (std::vector<float>{18446744073709551616.0F}));
  const int16_t i16[] = {-32768, 5};
  EXPECT_EQ(values(i16, DType::kInt16, 2), (std::vector<float>{-32768, 5}));
  EXPECT_EQ(values(i16, DType::kUInt16, 1), (std::vector<float>{32768}));
  const int32_t i32[] = {-1};
  EXPECT_EQ(values(i32, DType::kInt32, 1), (std::vector<float>{-1}));
  EXPECT_EQ(values(i32, DType::kUInt32, 1), (std::vector<float>{4294967296.0F}));
  const uint8_t bytes[] = {0xf1, 0x80, 0x07};
  EXPECT_EQ(values(bytes, DType::kInt8, 2), (std::vector<float>{-15, -128}));
  EXPECT_EQ(values(bytes, DType::kUInt8, 2), (std::vector<float>{241, 128}));
  EXPECT_EQ(values(bytes, DType::kInt4, 5), (std::vector<float>{1, -1, 0, -8, 7}));
  EXPECT_EQ(values(bytes, DType::kBool, 2), (std::vector<float>{1, 1}));
}

TEST(DTypes, DataMayLieAtAnyAddress) {
  std::vector<unsigned char> buffer(64, 0);
  const float value = 1.25F;
  std::memcpy(buffer.data() + 1, &value, sizeof value);
  float out = 0;
  convert_to_float(buffer.data() + 1, DType::kFloat32, 1, &out);
  EXPECT_EQ(out, value);
  convert_from_float(&value, 1, DType::kBFloat16, buffer.data() + 3);
  convert_to_float(buffer.data() + 3, DType::kBFloat16, 1, &out);
  EXPECT_EQ(out, value);
}

TEST(DTypes, FloatsAreNotStoredAsIntegers) {
  const float value = 1;
  uint8_t out = 0;
  EXPECT_THROW(convert_from_float(&value, 1, DType::kInt8, &out), Error);
}

}  // namespace
}  // namespace coluber
