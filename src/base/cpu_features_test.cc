// SPDX-License-Identifier: Apache-2.0
#include "base/cpu_features.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "base/error.h"

namespace coluber {
namespace {

class ForcedIsa : public testing::Test {
 protected:
  void SetUp() override {
    if (const char* value = std::getenv("COLUBER_FORCE_ISA")) before_ = value;
  }
  void TearDown() override { force(before_.c_str()); }
  static void force(const char* name) { ::setenv("COLUBER_FORCE_ISA", name, 1); }

  std::string before_;
};

TEST(CpuFeatures, AgreeWithTheKernelsFlags) {
  std::ifstream file("/proc/cpuinfo");
  std::string line, flags;
  while (std::getline(file, line)) {
    if (line.rfind("flags", 0) == 0) flags = line + " ";
  }
  if (flags.empty()) GTEST_SKIP() << "/proc/cpuinfo has no flags here";
  const auto has = [&flags](const std::string& flag) { return flags.find(" " + flag + " ") != std::string::npos; };
  const bool avx2 = has("avx2") && has("fma") && has("f16c");
  const bool avx512 = avx2 && has("avx512f") && has("avx512bw") && has("avx512vl") && has("avx512dq");
  const bool bf16 = avx512 && has("avx512_bf16") && has("avx512_vnni");
  EXPECT_EQ(cpu_features().best, bf16 ? Isa::kAvx512Bf16 : avx512 ? Isa::kAvx512 : avx2 ? Isa::kAvx2 : Isa::kRef);
}

TEST(CpuFeatures, CachesAreOrdered) {
  const CpuFeatures& features = cpu_features();
  EXPECT_GE(features.l1d_bytes, 8 << 10);
  EXPECT_GT(features.l2_bytes, features.l1d_bytes);
  EXPECT_FALSE(features.model_name.empty());
}

TEST_F(ForcedIsa, LowersTheTierButNeverRaisesIt) {
  for (int i = 0; i <= static_cast<int>(Isa::kAvx512Bf16); ++i) {
    const auto isa = static_cast<Isa>(i);
    force(std::string(isa_name(isa)).c_str());
    if (isa <= cpu_features().best) {
      EXPECT_EQ(active_isa(), isa);
    } else {
      EXPECT_THROW(active_isa(), Error);
    }
  }
  force("");
  EXPECT_EQ(active_isa(), cpu_features().best);
  force("sse9");
  EXPECT_THROW(active_isa(), Error);
}

}  // namespace
}  // namespace coluber
