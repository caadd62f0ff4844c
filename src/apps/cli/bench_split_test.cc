// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/bench_split.h"

#include <gtest/gtest.h>

#include <set>

#include "kernels/op_registry.h"

namespace coluber::cli {
namespace {

StepSplit split() {
  return {1000.0, {{"gemm", 300.0}, {"ssd_state_update", 500.0}, {"causal_conv1d_update", 50.0}, {"rms_norm", 40.0}}};
}

TEST(BenchSplit, EveryMicrosecondIsOfOnePart) {
  EXPECT_EQ(split().us(StepPart::kProjections), 300.0);
  EXPECT_EQ(split().us(StepPart::kStates), 550.0);
  EXPECT_EQ(split().us(StepPart::kOther), 40.0);
  EXPECT_EQ(split().rest_us(), 110.0);
  EXPECT_EQ(split_text(split()),
            "step      1000 us: projections 300 us (30.0 %), states 550 us (55.0 %), everything else 150 us (15.0 %):\n"
            "          other operations 40 us (4.0 %), the host, logits on their way to it and gaps 110 us (11.0 %)\n");
  const Json json = split_json(split());
  EXPECT_EQ(json.find("rest_us")->as_double(), 110.0);
  EXPECT_EQ(json.find("operations_us")->find("gemm")->as_double(), 300.0);
}

TEST(BenchSplit, OperationsTimedApartMayTakeLongerThanTheStep) {
  StepSplit s = split();
  s.step_us = 800.0;
  EXPECT_EQ(s.rest_us(), 0.0);
}

// A name that no operation has would leave that operation's time with everything else.
TEST(BenchSplit, PartsAreOfOperationsThatThereAre) {
  std::set<std::string> projections, states;
  for (const OperationNames& known : known_operations()) {
    if (step_part_of(known.operation) == StepPart::kProjections) projections.insert(known.operation);
    if (step_part_of(known.operation) == StepPart::kStates) states.insert(known.operation);
  }
  EXPECT_EQ(projections.size(), 2u);
  EXPECT_EQ(states.size(), 13u);
}

}  // namespace
}  // namespace coluber::cli
