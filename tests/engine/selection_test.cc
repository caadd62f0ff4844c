// SPDX-License-Identifier: Apache-2.0
//
// No family runs on a reference kernel where the processor has AVX2.
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>
#include <string>

#include "families.h"
#include "kernels/op_registry.h"

namespace coluber {
namespace {

TEST(Selection, NoOperationOfTheFamiliesSelectsTheReference) {
  if (active_isa() < Isa::kAvx2) GTEST_SKIP() << "this processor or COLUBER_FORCE_ISA allows the reference only";
  if (std::getenv("COLUBER_FORCE_IMPL") != nullptr) GTEST_SKIP() << "COLUBER_FORCE_IMPL is set";
  for (const std::string& family : families::names()) {
    auto engine = Engine::load(families::options_for(family));
    auto session = engine->open_session();
    session->extend(families::prompt_of(70));
    session->generate(families::greedy(3));
    SamplingParams sampled = families::greedy(3);
    sampled.temperature = 0.8f;
    sampled.top_p = 0.9f;
    sampled.repetition_penalty = 1.1f;
    session->generate(sampled);
  }
  const std::vector<Selection> selections = selected_implementations();
  EXPECT_GE(selections.size(), 8u);
  std::set<std::string> known;
  for (const OperationNames& names : known_operations()) known.insert(names.operation);
  for (const Selection& selection : selections) {
    EXPECT_NE(selection.implementation, "ref") << selection.operation;
    EXPECT_TRUE(known.contains(selection.operation))
        << selection.operation << " cannot be forced: it lacks a line RegisterOperations beside its accessor";
  }
}

class ForcedImplementations : public testing::Test {
 protected:
  void SetUp() override {
    if (const char* value = std::getenv("COLUBER_FORCE_IMPL")) before_ = value;
  }
  void TearDown() override { ::setenv("COLUBER_FORCE_IMPL", before_.c_str(), 1); }

 private:
  std::string before_;
};

TEST_F(ForcedImplementations, AreCheckedBeforeTheModelIsLookedFor) {
  ::setenv("COLUBER_FORCE_IMPL", "no_such_thing=ref", 1);
  EngineOptions options;
  options.model = "no/such/model";
  try {
    Engine::load(options);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("'no_such_thing'"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace coluber
