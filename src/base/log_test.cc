// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <gtest/gtest.h>

namespace coluber {
namespace {

class Log : public testing::Test {
 protected:
  void TearDown() override { set_log_level(LogLevel::kWarn); }
};

TEST_F(Log, GoesToStandardErrorNeverToStandardOutput) {
  set_log_level(LogLevel::kInfo);
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  log_info("seven is {}", 7);
  const std::string err = testing::internal::GetCapturedStderr(), out = testing::internal::GetCapturedStdout();
  EXPECT_NE(err.find("seven is 7"), std::string::npos) << err;
  EXPECT_EQ(out, "");
}

TEST_F(Log, KeepsQuietBelowItsLevel) {
  set_log_level(LogLevel::kWarn);
  testing::internal::CaptureStderr();
  log_debug("no");
  log_info("no");
  log_warn("yes");
  const std::string err = testing::internal::GetCapturedStderr();
  EXPECT_EQ(err.find("no"), std::string::npos) << err;
  EXPECT_NE(err.find("yes"), std::string::npos) << err;
}

TEST_F(Log, OffMeansOff) {
  set_log_level(LogLevel::kOff);
  EXPECT_FALSE(log_enabled(LogLevel::kError));
  EXPECT_FALSE(log_enabled(LogLevel::kOff));
  testing::internal::CaptureStderr();
  log_message(LogLevel::kError, "no");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST_F(Log, BracesInAMessageAreText) {
  testing::internal::CaptureStderr();
  log_message(LogLevel::kWarn, "a {} b {0} {");
  EXPECT_NE(testing::internal::GetCapturedStderr().find("a {} b {0} {"), std::string::npos);
}

}  // namespace
}  // namespace coluber
