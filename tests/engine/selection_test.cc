// SPDX-License-Identifier: Apache-2.0
//
// No family runs on a reference kernel where the processor has AVX2.
#include <gtest/gtest.h>

#include <cstdlib>

#include "families.h"
#include "kernels/op.h"

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
  for (const Selection& selection : selections) EXPECT_NE(selection.implementation, "ref") << selection.operation;
}

}  // namespace
}  // namespace coluber
