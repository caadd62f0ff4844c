// SPDX-License-Identifier: Apache-2.0
#include "base/error.h"

#include <gtest/gtest.h>

#include <set>

namespace coluber {
namespace {

constexpr int kNumCodes = static_cast<int>(ErrorCode::kInternal) + 1;

TEST(ErrorCodes, EveryCodeHasANameAndAnExitStatusOfItsOwn) {
  std::set<std::string_view> names;
  std::set<int> statuses;
  for (int i = 0; i < kNumCodes; ++i) {
    const auto code = static_cast<ErrorCode>(i);
    EXPECT_NE(error_code_name(code), "unknown") << i;
    names.insert(error_code_name(code));
    statuses.insert(exit_code(code));
    EXPECT_TRUE(exit_code(code) >= 0 && exit_code(code) <= 255);
  }
  EXPECT_EQ(names.size(), static_cast<size_t>(kNumCodes));
  EXPECT_EQ(statuses.size(), static_cast<size_t>(kNumCodes));
  EXPECT_EQ(exit_code(ErrorCode::kOk), 0);
  EXPECT_EQ(exit_code(ErrorCode::kInvalidArgument), 2);
  EXPECT_EQ(exit_code(ErrorCode::kCancelled), 130);
}

TEST(Errors, ZeroBytesInNamesDoNotEndTheMessage) {
  EXPECT_STREQ(Error(ErrorCode::kInvalidData, std::string("tensor 'a\0b' and \0", 18)).what(),
               "tensor 'a\\x00b' and \\x00");
}

TEST(Check, ABrokenInvariantThrowsWithPlaceAndValues) {
  const int slot = 7;
  try {
    COLUBER_CHECK(slot < 5, "slot {} of {}", slot, 5);
    FAIL() << "did not throw";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
    const std::string what = error.what();
    EXPECT_NE(what.find("src/base/error_test.cc:"), std::string::npos) << what;
    EXPECT_NE(what.find("slot < 5"), std::string::npos) << what;
    EXPECT_NE(what.find("slot 7 of 5"), std::string::npos) << what;
  }
}

TEST(Check, WorksWithoutAMessageAndLetsTruthPass) {
  EXPECT_NO_THROW(COLUBER_CHECK(1 + 1 == 2));
  EXPECT_THROW(COLUBER_CHECK(1 + 1 == 3), Error);
}

TEST(Check, EvaluatesItsMessageOnlyOnFailure) {
  int evaluated = 0;
  COLUBER_CHECK(true, "{}", ++evaluated);
  EXPECT_EQ(evaluated, 0);
}

TEST(Results, AFailureBecomesAnErrorForOperators) {
  const auto half = [](int value) -> Result<int> {
    if (value % 2 != 0) return fail(ErrorCode::kInvalidArgument, "{} is odd", value);
    return value / 2;
  };
  EXPECT_EQ(value_or_throw(half(4)), 2);
  try {
    value_or_throw(half(3));
    FAIL() << "did not throw";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_STREQ(error.what(), "3 is odd");
  }
}

}  // namespace
}  // namespace coluber
