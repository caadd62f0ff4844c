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

TEST(RopeParameters, LongRopesFactorIsTheRatioOfTheLengthsWhereNoneIsNamed) {
  EXPECT_EQ(read(longrope(R"("original_max_position_embeddings": 16)")).factor, 4.0);
  EXPECT_EQ(read(longrope(R"("original_max_position_embeddings": 16, "factor": 2.5)")).factor, 2.5);
  EXPECT_EQ(read(longrope(R"("original_max_position_embeddings": 128)")).factor, 1.0);
}

TEST(RopeParameters, LongRopeNeedsAFactorForEachPairInBothLists) {
  for (const char* lists : {R"("short_factor": [1, 1], "long_factor": [1, 2, 3, 4, 5, 6, 7, 8])",
                            R"("short_factor": [1, 2, 3, 4, 5, 6, 7, 8], "long_factor": [])",
                            R"("short_factor": [1, 2, 3, 4, 5, 6, 7, 8])"}) {
    EXPECT_THROW(read(std::string(R"({"max_position_embeddings": 64, "rope_scaling": {"type": "longrope", )") + lists +
                      R"(, "original_max_position_embeddings": 16}})"),
                 Error)
        << lists;
  }
}

// tests/data/rope: every kind, in both spellings, with the frequencies that transformers computes.
TEST(RopeParameters, GiveTheFrequenciesOfTransformers) {
  const Json all = read_json_file(std::string(COLUBER_SOURCE_DIR) + "/tests/data/rope/rope.json");
  const int64_t head_dim = all.at("head_dim").as_int();
  auto expect_near = [](const std::vector<double>& got, const Json* want) {
    const Json::Array& values = want->as_array();
    ASSERT_EQ(got.size(), values.size());
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], values[i].as_double(), 1e-7 * got[i] + 1e-12) << i;
  };
  for (const Json& entry : all.at("table").as_array()) {
    const std::string config = entry.at("config").dump();
    SCOPED_TRACE(config);
    const RopeConfig rope = read(config);
    const RopeFrequencies turns = rope_frequencies(rope, head_dim);
    expect_near(turns.frequencies, entry.find("frequencies"));
    EXPECT_NEAR(turns.attention_factor, entry.at("attention_factor").as_double(), 1e-9);
    const Json* long_turns = entry.find("long_frequencies");
    ASSERT_EQ(long_turns != nullptr, !turns.long_frequencies.empty());
    if (long_turns == nullptr) continue;
    expect_near(turns.long_frequencies, long_turns);
    EXPECT_EQ(rope.original_max_position_embeddings, entry.at("long_beyond").as_int());
  }
  EXPECT_GE(all.at("table").as_array().size(), 20u);
}

TEST(RopeParameters, ABaseOfNullIsSeenWhereItCounts) {
  auto is_null = [](const std::string& config) {
    const Json json = parse_config(config, "config.json");
    ConfigFields fields(json, "config.json");
    return rope_theta_is_null(fields);
  };
  EXPECT_TRUE(is_null(R"({"rope_parameters": {"rope_theta": null, "rope_type": "default"}})"));
  EXPECT_TRUE(is_null(R"({"rope_theta": null, "rope_scaling": null})"));
  EXPECT_FALSE(is_null(R"({"rope_parameters": null})"));
  EXPECT_FALSE(is_null(R"({"rope_theta": null, "rope_parameters": {"rope_theta": 10000.0}})"));
  EXPECT_FALSE(is_null("{}"));
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
