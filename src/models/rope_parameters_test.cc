// SPDX-License-Identifier: Apache-2.0
#include "models/rope_parameters.h"

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"

namespace coluber {
namespace {

RopeConfig read(const std::string& config) {
  const Json json = parse_config(config, "config.json");
  ConfigFields fields(json, "config.json");
  const RopeConfig rope = read_rope_parameters(fields, 10000.0, 16);
  fields.finish();
  return rope;
}

TEST(RopeParameters, YarnReadsEveryFieldThatTransformersReads) {
  const RopeConfig rope = read(R"({"max_position_embeddings": 128, "rope_parameters": {
      "rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 16,
      "beta_slow": 2, "mscale": 1.0, "mscale_all_dim": 0.5, "truncate": false}})");
  EXPECT_EQ(rope.type, RopeType::kYarn);
  EXPECT_EQ(rope.theta, 500.0);
  EXPECT_EQ(rope.factor, 4.0);
  EXPECT_EQ(rope.original_max_position_embeddings, 32);
  EXPECT_EQ(rope.beta_fast, 16.0);
  EXPECT_EQ(rope.beta_slow, 2.0);
  EXPECT_EQ(rope.mscale, 1.0);
  EXPECT_EQ(rope.mscale_all_dim, 0.5);
  EXPECT_FALSE(rope.truncate);
}

TEST(RopeParameters, TheTrainedLengthIsTheModelsWhereTheScalingNamesNone) {
  const std::string scaling = R"("rope_scaling": {"type": "llama3", "factor": 8})";
  EXPECT_EQ(read(R"({"max_position_embeddings": 64, )" + scaling + "}").original_max_position_embeddings, 64);
  EXPECT_EQ(read(R"({"max_position_embeddings": 64, "original_max_position_embeddings": 48, )" + scaling + "}")
                .original_max_position_embeddings,
            48);
  EXPECT_THROW(read("{" + scaling + "}"), Error);
}

TEST(RopeParameters, DynamicScalingIsNoneWithinTheModelsContext) {
  const RopeConfig rope = read(R"({"max_position_embeddings": 64, "rope_scaling": {"type": "dynamic", "factor": 2}})");
  EXPECT_EQ(rope.type, RopeType::kDefault);
  EXPECT_EQ(rope_frequencies(rope, 16).frequencies, rope_frequencies({.rotary_dim = 16}, 16).frequencies);
}

TEST(RopeParameters, TheModelsTrainedLengthWinsOverTheScalings) {
  EXPECT_EQ(read(R"({"max_position_embeddings": 64, "original_max_position_embeddings": 48, "rope_scaling": {
      "type": "yarn", "factor": 2, "original_max_position_embeddings": 32}})")
                .original_max_position_embeddings,
            48);
}

std::string longrope(const std::string& more) {
  return R"({"max_position_embeddings": 64, "rope_scaling": {"type": "longrope",
      "short_factor": [1, 1, 1, 1, 1, 1, 1, 1], "long_factor": [1, 2, 3, 4, 5, 6, 7, 8], )" +
         more + "}}";
}

TEST(RopeParameters, LongRopeTurnsByTheFactorsOfTheLengthThatTheModelMayReach) {
  EXPECT_EQ(read(longrope(R"("original_max_position_embeddings": 16)")).divisors,
            (std::vector<double>{1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(read(longrope(R"("original_max_position_embeddings": 64)")).divisors, std::vector<double>(8, 1.0));
  EXPECT_EQ(read(longrope(R"("original_max_position_embeddings": 16)")).factor, 4.0);
  EXPECT_EQ(read(longrope(R"("original_max_position_embeddings": 16, "factor": 2.5)")).factor, 2.5);
}

TEST(RopeParameters, LongRopeNeedsAFactorForEachPair) {
  EXPECT_THROW(read(R"({"max_position_embeddings": 64, "rope_scaling": {"type": "longrope", "short_factor": [1, 1],
      "long_factor": [1, 2], "original_max_position_embeddings": 16}})"),
               Error);
  EXPECT_THROW(read(R"({"max_position_embeddings": 64, "rope_scaling": {"type": "longrope"}})"), Error);
}

TEST(RopeParameters, ProportionalKeepsTheWholeHeadsFrequenciesForThePartThatTurns) {
  const RopeConfig rope = read(R"({"rope_parameters": {"rope_type": "proportional", "partial_rotary_factor": 0.25}})");
  EXPECT_EQ(rope.rotary_dim, 16);
  const auto whole = rope_frequencies({.rotary_dim = 16}, 16).frequencies;
  EXPECT_EQ(rope_frequencies(rope, 16).frequencies, (std::vector<double>{whole[0], whole[1], 0, 0, 0, 0, 0, 0}));
}

TEST(RopeParameters, AScalingWithoutAFactorIsRefused) {
  try {
    read(R"({"rope_parameters": {"rope_type": "linear"}})");
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("rope_parameters.factor"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace coluber
