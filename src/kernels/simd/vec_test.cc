// SPDX-License-Identifier: Apache-2.0
//
// Every function of every tier's vector type against double arithmetic, on the tiers that this machine has.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/cpu_features.h"

namespace coluber {
namespace {

enum class Unary { kExp2, kExp, kLog, kSigmoid, kSilu, kSoftplus, kSqrt, kRound, kPow2i, kExponent, kMantissa };
enum class Ternary { kAdd, kSub, kMul, kDiv, kFma, kFnma, kMax, kMin, kSelectGt, kKeepNan };

struct TierFunctions {
  int (*lanes)();
  bool (*has_bf16_dot)();
  void (*apply_unary)(Unary op, const float* x, float* y, int64_t n);
  void (*apply_ternary)(Ternary op, const float* a, const float* b, const float* c, float* y, int64_t n);
  void (*copy_n)(const float* x, float* y, int n);
  float (*sum_lanes)(const float* x);
  float (*max_lanes)(const float* x);
  void (*widen_bf16)(const uint16_t* x, float* y, int64_t n);
  void (*widen_f16)(const uint16_t* x, float* y, int64_t n);
  void (*narrow_bf16)(const float* x, uint16_t* y, int64_t n);
  void (*narrow_f16)(const float* x, uint16_t* y, int64_t n);
  void (*dot_pairs)(const float* acc, uint32_t pair, const uint16_t* x, float* y, int64_t n);
  void (*split_pairs)(const uint16_t* x, float* first, float* second, int64_t n);
};

}  // namespace
}  // namespace coluber

#define COLUBER_SIMD_SOURCE "kernels/simd/vec_test.inl"
#include "kernels/simd/foreach_isa.h"

namespace coluber {
namespace {

struct Tier {
  const char* name;
  Isa isa;
  const TierFunctions* functions;
};
constexpr Tier kTiers[] = {{"avx2", Isa::kAvx2, &avx2::kFunctions},
                           {"avx512", Isa::kAvx512, &avx512::kFunctions},
                           {"avx512_bf16", Isa::kAvx512Bf16, &avx512_bf16::kFunctions}};

class Vec : public ::testing::TestWithParam<Tier> {
 protected:
  void SetUp() override {
    if (GetParam().isa > active_isa())
      GTEST_SKIP() << GetParam().name << ": this machine's tier is " << isa_name(active_isa());
  }
  const TierFunctions& f() const { return *GetParam().functions; }
};
INSTANTIATE_TEST_SUITE_P(Tiers, Vec, ::testing::ValuesIn(kTiers),
                         [](const auto& info) { return std::string(info.param.name); });

float from_bits(uint32_t bits) { return std::bit_cast<float>(bits); }
uint32_t to_bits(float value) { return std::bit_cast<uint32_t>(value); }

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Every 1009th bit pattern in [low, high], both ends and `extra`; a multiple of every tier's lanes.
std::vector<float> sweep(float low, float high, std::vector<float> extra = {}) {
  std::vector<float> values = std::move(extra);
  values.push_back(low);
  values.push_back(high);
  for (uint64_t bits = 0; bits < (1ull << 32); bits += 1009) {
    const float value = from_bits(static_cast<uint32_t>(bits));
    if (value >= low && value <= high) values.push_back(value);
  }
  while (values.size() % 16 != 0) values.push_back(low);
  return values;
}

// Distance in units of the last place of the correctly rounded result.
double ulps(float got, double want) {
  if (std::isnan(want)) return std::isnan(got) ? 0 : HUGE_VAL;
  if (std::isinf(got) || std::isinf(want)) return static_cast<double>(got) == want ? 0 : HUGE_VAL;
  const int exponent = std::max(std::ilogb(want == 0 ? 1e-300 : want), -126);
  return std::fabs(got - want) / std::ldexp(1.0, exponent - 23);
}

void expect_within_ulps(const TierFunctions& f, Unary op, const std::vector<float>& x, double limit,
                        const std::function<double(double)>& exact) {
  std::vector<float> y(x.size());
  f.apply_unary(op, x.data(), y.data(), static_cast<int64_t>(x.size()));
  size_t worst = 0;
  double most = -1;
  for (size_t i = 0; i < x.size(); ++i) {
    const double error = ulps(y[i], exact(x[i]));
    if (error > most) most = error, worst = i;
  }
  EXPECT_LE(most, limit) << "at x = " << ::testing::PrintToString(x[worst]) << " expected " << exact(x[worst])
                         << ", found " << ::testing::PrintToString(y[worst]);
}

float apply(const TierFunctions& f, Unary op, float x) {
  std::vector<float> in(16, x), out(16);
  f.apply_unary(op, in.data(), out.data(), 16);
  return out[0];
}

TEST_P(Vec, ExpIsWithinTwoUlpDownToTheSmallestResults) {
  expect_within_ulps(f(), Unary::kExp, sweep(-86.98f, 88.72283f), 2, [](double x) { return std::exp(x); });
}
TEST_P(Vec, Exp2IsWithinTwoUlpDownToTheSmallestResults) {
  expect_within_ulps(f(), Unary::kExp2, sweep(-125.49f, 127.99999f), 2, [](double x) { return std::exp2(x); });
}
TEST_P(Vec, ExpEndsInZeroInfinityAndNan) {
  for (Unary op : {Unary::kExp, Unary::kExp2}) {
    EXPECT_EQ(apply(f(), op, -200.0f), 0.0f);
    EXPECT_EQ(apply(f(), op, -kInf), 0.0f);
    EXPECT_EQ(apply(f(), op, 129.0f), kInf);
    EXPECT_EQ(apply(f(), op, kInf), kInf);
    EXPECT_EQ(apply(f(), op, 0.0f), 1.0f);
    for (float x = -88.0f; x > -130.0f; x -= 0.37f) EXPECT_LE(apply(f(), op, x), std::exp2(x) * 1.001f + 1.2e-38f) << x;
    EXPECT_TRUE(std::isnan(apply(f(), op, kNan)));
  }
}
TEST_P(Vec, LogIsWithinTwoUlpOfPositiveNormalNumbers) {
  expect_within_ulps(f(), Unary::kLog,
                     sweep(1.17549435e-38f, 3.4028235e38f, {1.0f, 0.99999994f, 1.0000001f, 1.4142135f}), 2,
                     [](double x) { return std::log(x); });
}
TEST_P(Vec, SigmoidAndSiluAreWithinFourUlp) {
  expect_within_ulps(f(), Unary::kSigmoid, sweep(-87.0f, 100.0f), 4, [](double x) { return 1 / (1 + std::exp(-x)); });
  expect_within_ulps(f(), Unary::kSilu, sweep(-87.0f, 100.0f), 4, [](double x) { return x / (1 + std::exp(-x)); });
}
TEST_P(Vec, SigmoidAndSiluOfLargeNegativesVanish) {
  for (float x : {-89.0f, -200.0f, -1e30f}) {
    EXPECT_LE(std::fabs(apply(f(), Unary::kSigmoid, x)), 1e-37f) << x;
    EXPECT_LE(std::fabs(apply(f(), Unary::kSilu, x)), 1e-35f) << x;
  }
  EXPECT_TRUE(std::isnan(apply(f(), Unary::kSilu, kNan)));
}
TEST_P(Vec, SoftplusIsWithinFourUlpAndTheIdentityBeyondTwenty) {
  expect_within_ulps(f(), Unary::kSoftplus, sweep(-86.98f, 20.0f), 4, [](double x) { return std::log1p(std::exp(x)); });
  for (float x : {20.000002f, 88.0f, 1e30f, kInf}) EXPECT_EQ(apply(f(), Unary::kSoftplus, x), x);
  EXPECT_EQ(apply(f(), Unary::kSoftplus, -kInf), 0.0f);
  EXPECT_TRUE(std::isnan(apply(f(), Unary::kSoftplus, kNan)));
}

TEST_P(Vec, RootRoundAndPartsOfANumberAreExact) {
  expect_within_ulps(f(), Unary::kSqrt, sweep(0.0f, 3.4e38f), 0.5, [](double x) { return std::sqrt(x); });
  expect_within_ulps(f(), Unary::kRound, sweep(-1e6f, 1e6f, {0.5f, 1.5f, 2.5f, -0.5f}), 0,
                     [](double x) { return std::nearbyint(x); });
  expect_within_ulps(f(), Unary::kExponent, sweep(1.17549435e-38f, 3.4e38f), 0, [](double x) { return std::ilogb(x); });
  expect_within_ulps(f(), Unary::kMantissa, sweep(1.17549435e-38f, 3.4e38f), 0,
                     [](double x) { return x / std::ldexp(1.0, std::ilogb(x)); });
  std::vector<float> whole;
  for (int n = -126; n <= 127; ++n) whole.push_back(static_cast<float>(n));
  whole.resize(256, 0.0f);
  expect_within_ulps(f(), Unary::kPow2i, whole, 0, [](double x) { return std::exp2(x); });
}

TEST_P(Vec, ArithmeticIsThatOfTheScalarType) {
  constexpr int64_t kCount = 4096;
  std::mt19937 generator(7);
  std::normal_distribution<float> normal(0, 10);
  std::vector<float> a(kCount), b(kCount), c(kCount), y(kCount);
  for (int64_t i = 0; i < kCount; ++i) a[i] = normal(generator), b[i] = normal(generator), c[i] = normal(generator);
  b[3] = a[3];
  a[5] = kNan;
  const std::pair<Ternary, std::function<float(float, float, float)>> cases[] = {
      {Ternary::kAdd, [](float u, float v, float) { return u + v; }},
      {Ternary::kSub, [](float u, float v, float) { return u - v; }},
      {Ternary::kMul, [](float u, float v, float) { return u * v; }},
      {Ternary::kDiv, [](float u, float v, float) { return u / v; }},
      {Ternary::kFma, [](float u, float v, float w) { return std::fma(u, v, w); }},
      {Ternary::kFnma, [](float u, float v, float w) { return std::fma(-u, v, w); }},
      {Ternary::kMax, [](float u, float v, float) { return u > v ? u : v; }},
      {Ternary::kMin, [](float u, float v, float) { return u < v ? u : v; }},
      {Ternary::kSelectGt, [](float u, float v, float w) { return u > v ? w : 7.0f; }},
      {Ternary::kKeepNan, [](float u, float v, float) { return std::isnan(u) ? u : v; }},
  };
  for (const auto& [op, scalar] : cases) {
    f().apply_ternary(op, a.data(), b.data(), c.data(), y.data(), kCount);
    for (int64_t i = 0; i < kCount; ++i) {
      const float want = scalar(a[i], b[i], c[i]);
      if (std::isnan(want) && std::isnan(y[i])) continue;
      ASSERT_EQ(to_bits(y[i]), to_bits(want)) << "operation " << static_cast<int>(op) << ", index " << i;
    }
  }
}

TEST_P(Vec, PartialLoadsAndStoresTouchOnlyTheirLanes) {
  const int lanes = f().lanes();
  std::vector<float> x(static_cast<size_t>(lanes));
  for (int i = 0; i < lanes; ++i) x[i] = static_cast<float>(i + 1);
  for (int n = 0; n <= lanes; ++n) {
    std::vector<float> y(static_cast<size_t>(lanes), -1.0f);
    f().copy_n(x.data(), y.data(), n);
    for (int i = 0; i < lanes; ++i) EXPECT_EQ(y[i], i < n ? x[i] : -1.0f) << "n = " << n << ", lane " << i;
  }
}

TEST_P(Vec, ReductionsSeeEveryLane) {
  for (int lane = 0; lane < f().lanes(); ++lane) {
    std::vector<float> x(16, -3.0f);
    x[lane] = 5.0f;
    EXPECT_EQ(f().max_lanes(x.data()), 5.0f) << lane;
    EXPECT_EQ(f().sum_lanes(x.data()), 5.0f - 3.0f * static_cast<float>(f().lanes() - 1)) << lane;
  }
}

uint16_t round_to_bf16(float value) {
  const uint32_t bits = to_bits(value);
  if (std::isnan(value)) return static_cast<uint16_t>((bits | 0x400000) >> 16);
  const uint32_t rest = bits & 0xffff, top = bits >> 16;
  return static_cast<uint16_t>(top + (rest > 0x8000 || (rest == 0x8000 && (top & 1)) ? 1 : 0));
}

// By the definition: sign, 5 bits of exponent, 10 of mantissa.
double value_of_f16(uint16_t half) {
  const int exponent = (half >> 10) & 31, mantissa = half & 1023;
  const double sign = half & 0x8000 ? -1 : 1;
  if (exponent == 31) return mantissa ? NAN : sign * HUGE_VAL;
  return sign * (exponent ? std::ldexp(1024 + mantissa, exponent - 25) : std::ldexp(mantissa, -24));
}

TEST_P(Vec, WideningOfEveryHalfPrecisionValueIsExact) {
  std::vector<uint16_t> all(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  std::vector<float> y(all.size());
  f().widen_bf16(all.data(), y.data(), 65536);
  for (size_t i = 0; i < all.size(); ++i) ASSERT_EQ(to_bits(y[i]), static_cast<uint32_t>(i) << 16);
  f().widen_f16(all.data(), y.data(), 65536);
  for (size_t i = 0; i < all.size(); ++i) {
    const double want = value_of_f16(all[i]);
    ASSERT_TRUE(std::isnan(want) ? std::isnan(y[i]) : y[i] == want) << "bits " << i << ": " << y[i];
  }
}

TEST_P(Vec, StoresRoundToNearestEven) {
  const std::vector<float> x = sweep(-kInf, kInf,
                                     {kNan, from_bits(0x7f800001), from_bits(0x3f808000), from_bits(0x3f818000),
                                      from_bits(0x7f7fffff), 65504.0f, 65519.0f, 65520.0f, 1e-8f, 5.9604645e-8f});
  std::vector<uint16_t> y(x.size());
  f().narrow_bf16(x.data(), y.data(), static_cast<int64_t>(x.size()));
  for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(y[i], round_to_bf16(x[i])) << "bits " << to_bits(x[i]);
  f().narrow_f16(x.data(), y.data(), static_cast<int64_t>(x.size()));
  for (size_t i = 0; i < x.size(); ++i) {
    if (std::isnan(x[i])) {
      ASSERT_TRUE(std::isnan(value_of_f16(y[i])));
      continue;
    }
    const double magnitude = std::fabs(static_cast<double>(x[i])), found = std::fabs(value_of_f16(y[i]));
    ASSERT_EQ((y[i] & 0x8000) != 0, std::signbit(x[i]));
    if (magnitude >= 65520.0) {
      ASSERT_EQ(found, HUGE_VAL) << x[i];
      continue;
    }
    // Nearest: neither neighbour is closer; on a tie the mantissa is even.
    const double error = std::fabs(found - magnitude),
                 unit = std::ldexp(1.0, std::max(std::ilogb(std::max(magnitude, 1e-300)), -14) - 10);
    ASSERT_LE(error, unit / 2) << x[i];
    if (error == unit / 2) {
      ASSERT_EQ(y[i] & 1, 0) << x[i];
    }
  }
}

TEST_P(Vec, PairsSplitAndMultiply) {
  constexpr int64_t kCount = 64;
  std::mt19937 generator(3);
  std::normal_distribution<float> normal(0, 1);
  std::vector<uint16_t> x(2 * kCount);
  std::vector<float> acc(kCount), y(kCount), first(kCount), second(kCount);
  for (uint16_t& v : x) v = round_to_bf16(normal(generator));
  for (float& v : acc) v = normal(generator);
  const uint16_t p = round_to_bf16(1.375f), q = round_to_bf16(-0.8125f);
  f().split_pairs(x.data(), first.data(), second.data(), kCount);
  f().dot_pairs(acc.data(), static_cast<uint32_t>(q) << 16 | p, x.data(), y.data(), kCount);
  for (int64_t i = 0; i < kCount; ++i) {
    EXPECT_EQ(to_bits(first[i]), static_cast<uint32_t>(x[2 * i]) << 16);
    EXPECT_EQ(to_bits(second[i]), static_cast<uint32_t>(x[2 * i + 1]) << 16);
    EXPECT_NEAR(y[i], acc[i] + 1.375 * first[i] - 0.8125 * second[i], 1e-6);
  }
  EXPECT_EQ(f().has_bf16_dot(), GetParam().isa == Isa::kAvx512Bf16);
}

}  // namespace
}  // namespace coluber
