// SPDX-License-Identifier: Apache-2.0
#include "kernels/op_registry.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "base/error.h"

namespace coluber {
namespace {

using Function = int (*)(int);

const Operation<Function>& first_of_the_test() {
  static const Operation<Function> operation(
      "test_first", {{"avx2", Isa::kAvx2, [](int x) { return x + 1; }}, {"ref", Isa::kRef, [](int x) { return x; }}});
  return operation;
}

const Operation<Function>& second_of_the_test() {
  static const Operation<Function> operation("test_second", {{"ref", Isa::kRef, [](int x) { return x; }}});
  return operation;
}

const RegisterOperations kEntered(second_of_the_test, first_of_the_test);

class ForcedNames : public testing::Test {
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
  // The message of the refusal; empty where there is none.
  static std::string refusal_of(const char* text) {
    ::setenv("COLUBER_FORCE_IMPL", text, 1);
    try {
      check_forced_implementations();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      return error.what();
    }
    return {};
  }
  static bool says(const std::string& message, const char* words) { return message.find(words) != std::string::npos; }

 private:
  std::vector<std::pair<std::string, std::string>> before_;
};

TEST_F(ForcedNames, OperationsAreKnownBeforeTheirFirstUse) {
  const std::vector<OperationNames> known = known_operations();
  const auto found =
      std::find_if(known.begin(), known.end(), [](const auto& names) { return names.operation == "test_first"; });
  ASSERT_NE(found, known.end());
  EXPECT_EQ(found->implementations, (std::vector<std::string>{"avx2", "ref"}));
  EXPECT_EQ((found + 1)->operation, "test_second");
  for (const Selection& selection : selected_implementations()) EXPECT_NE(selection.operation, "test_first");
}

TEST_F(ForcedNames, ThoseThatThereArePass) {
  EXPECT_EQ(refusal_of(""), "");
  EXPECT_EQ(refusal_of("test_first=ref"), "");
  EXPECT_EQ(refusal_of("test_first=ref,,test_second=ref,"), "");
}

TEST_F(ForcedNames, UnknownOperationsAreRefusedWithTheKnownOnes) {
  const std::string message = refusal_of("test_third=ref");
  EXPECT_TRUE(says(message, "'test_third'")) << message;
  EXPECT_TRUE(says(message, "test_first, test_second")) << message;
}

TEST_F(ForcedNames, UnknownImplementationsAreRefusedWithTheKnownOnes) {
  const std::string message = refusal_of("test_first=sse9");
  EXPECT_TRUE(says(message, "'sse9'")) << message;
  EXPECT_TRUE(says(message, "avx2, ref")) << message;
}

TEST_F(ForcedNames, EverythingThatIsWrongIsToldAtOnce) {
  const std::string message = refusal_of("test_third=ref,gibberish,test_first=sse9,=ref,test_second=");
  for (const char* words : {"'test_third'", "'gibberish'", "'sse9'", "'=ref'", "'test_second='"})
    EXPECT_TRUE(says(message, words)) << words << " in " << message;
}

TEST_F(ForcedNames, TiersThatThisRunDoesNotHaveAreRefused) {
  ::setenv("COLUBER_FORCE_ISA", "ref", 1);
  const std::string message = refusal_of("test_first=avx2");
  EXPECT_TRUE(says(message, "needs avx2")) << message;
  ::setenv("COLUBER_FORCE_ISA", "sse9", 1);
  EXPECT_TRUE(says(refusal_of(""), "COLUBER_FORCE_ISA"));
}

}  // namespace
}  // namespace coluber
