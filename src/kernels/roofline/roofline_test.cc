// SPDX-License-Identifier: Apache-2.0
#include "kernels/roofline/roofline.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "base/error.h"
#include "kernels/op_test.h"
#include "kernels/roofline/device_roofline.h"

namespace coluber {
namespace {

TEST(Roofline, EveryReadLoopSeesEveryByte) {
  constexpr int64_t kWords = 4096;
  alignas(64) static uint64_t data[kWords];
  for (const auto& candidate : roofline_loops().candidates()) {
    if (candidate.isa > active_isa()) {
      name_unrun_tier("roofline", candidate.name);
      continue;
    }
    const RooflineLoops loops = candidate.function();
    for (int64_t at : {int64_t{0}, int64_t{77}, kWords - 1}) {
      std::fill_n(data, kWords, 0);
      data[at] = 0x123456789abcdef0;
      EXPECT_EQ(loops.read(data, sizeof data), data[at]) << candidate.name << ", word " << at;
    }
  }
}

// One lane after n rounds of s -> 0.999 s + 0.001, which tends to 1.
TEST(Roofline, EveryFmaLoopDoesTheRoundsThatItCounts) {
  for (const auto& candidate : roofline_loops().candidates()) {
    if (candidate.isa > active_isa()) continue;
    const RooflineLoops loops = candidate.function();
    const auto chains = static_cast<double>(loops.flops_per_round) / 2;  // lanes times ten starts, 5 to 14
    for (int64_t rounds : {int64_t{0}, int64_t{1}, int64_t{500}}) {
      const double want = chains * (1 + std::pow(0.999, static_cast<double>(rounds)) * (9.5 - 1));
      EXPECT_NEAR(loops.fma(rounds, 5.0f), want, 1e-3 * want) << candidate.name << ", " << rounds << " rounds";
    }
  }
}

TEST(Roofline, MeasurementsArePlausible) {
  const Roofline roofline = measure_roofline(2, int64_t{64} << 20, 3);
  EXPECT_EQ(roofline.threads, 2);
  EXPECT_LE(roofline.read_gbps_min, roofline.read_gbps);
  EXPECT_LE(roofline.read_gbps, roofline.read_gbps_max);
  EXPECT_GT(roofline.read_gbps, 0.05);
  EXPECT_LT(roofline.read_gbps, 5000);
  EXPECT_GT(roofline.fma_gflops, 0.1);
  EXPECT_LT(roofline.fma_gflops, 1000);
}

TEST(Roofline, RefusesWhatCannotBeMeasured) {
  EXPECT_THROW(measure_read_bandwidth(0), Error);
  EXPECT_THROW(measure_read_bandwidth(4, 1 << 20), Error);
  EXPECT_THROW(measure_read_bandwidth(1, 1 << 20, 0), Error);
  EXPECT_THROW(measure_fma_gflops(0), Error);
}

TEST(Roofline, IsNotMeasuredWithTheReferenceWhereThereIsAvx2) { expect_vectorised(roofline_loops()); }

TEST(Roofline, ADevicesCopyTakesWhatIsFreeAndMoreThanItsCacheHolds) {
  constexpr int64_t kMiB = 1 << 20, kGiB = 1 << 30;
  EXPECT_EQ(copy_bytes(100 * kGiB, 50 * kMiB), 2 * kGiB);
  EXPECT_EQ(copy_bytes(2 * kGiB, 50 * kMiB), kGiB / 2);
  EXPECT_EQ(copy_bytes(2 * kGiB + 5001, 50 * kMiB) % 4096, 0);
  EXPECT_EQ(copy_bytes(700 * kMiB, 50 * kMiB), 0);  // four times the cache are 200 MiB
  EXPECT_EQ(copy_bytes(700 * kMiB, 4 * kMiB), 175 * kMiB);
  EXPECT_EQ(copy_bytes(100 * kMiB, 0), 0);
}

TEST(Roofline, OfADeviceIsMeasuredInTurnsAndGivesItsMemoryBack) {
  std::string why;
  if (CudaLibrary::find(&why) == nullptr) GTEST_SKIP() << why;
  CudaDevice& device = cuda_device();
  product_rate(device);  // what the driver takes for itself, it keeps
  const int64_t free = device.free_bytes();
  for (int i = 0; i < 2; ++i) {
    EXPECT_GT(copy_bandwidth(device), 1e10);
    EXPECT_GT(product_rate(device), 1e12);
  }
  EXPECT_GT(device.free_bytes(), free - (int64_t{256} << 20));
}

}  // namespace
}  // namespace coluber
