// SPDX-License-Identifier: Apache-2.0
#include "kernels/op.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "base/error.h"

namespace coluber {
namespace {

using Function = int (*)(int);

class OperationChoice : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"COLUBER_FORCE_IMPL", "COLUBER_FORCE_ISA"}) {
      const char* value = std::getenv(name);
      before_.emplace_back(name, value == nullptr ? "" : value);
      ::setenv(name, "", 1);
    }
  }
  void TearDown() override {
    for (const auto& [name, value] : before_) ::setenv(name.c_str(), value.c_str(), 1);
  }
  static void force(const char* text) { ::setenv("COLUBER_FORCE_IMPL", text, 1); }
  static Operation<Function> make(const char* name) {
    return {name,
            {{"avx512_bf16", Isa::kAvx512Bf16, [](int x) { return x + 3; }},
             {"avx512", Isa::kAvx512, [](int x) { return x + 2; }},
             {"avx2", Isa::kAvx2, [](int x) { return x + 1; }},
             {"ref", Isa::kRef, [](int x) { return x; }}}};
  }

 private:
  std::vector<std::pair<std::string, std::string>> before_;
};

TEST_F(OperationChoice, TakesTheBestThatRunsHere) {
  const Operation<Function> operation{make("test_best")};
  EXPECT_EQ(operation.selected().isa, cpu_features().best);
  EXPECT_EQ(operation(10), 10 + static_cast<int>(cpu_features().best));
  EXPECT_STREQ(operation.reference().name, "ref");
}

TEST_F(OperationChoice, FollowsTheLoweredTier) {
  ::setenv("COLUBER_FORCE_ISA", "ref", 1);
  EXPECT_EQ(make("test_lowered")(10), 10);
}

TEST_F(OperationChoice, CanBeForcedAmongOthers) {
  force("other=avx2,test_forced=ref");
  EXPECT_EQ(make("test_forced")(10), 10);
  EXPECT_EQ(make("test_not_forced").selected().isa, cpu_features().best);
}

TEST_F(OperationChoice, RecordsWhatItChose) {
  force("test_recorded=ref");
  make("test_recorded")(1);
  const std::vector<Selection> all = selected_implementations();
  const auto found =
      std::find_if(all.begin(), all.end(), [](const Selection& s) { return s.operation == "test_recorded"; });
  ASSERT_NE(found, all.end());
  EXPECT_EQ(found->implementation, "ref");
}

TEST_F(OperationChoice, RefusesUnknownNamesAndTiersThatAreNotThere) {
  force("test_unknown=sse9");
  EXPECT_THROW(make("test_unknown")(1), Error);
  force("test_malformed");
  EXPECT_THROW(make("test_malformed")(1), Error);
  ::setenv("COLUBER_FORCE_ISA", "ref", 1);
  force("test_high=avx2");
  EXPECT_THROW(make("test_high")(1), Error);
}

}  // namespace
}  // namespace coluber
