// SPDX-License-Identifier: Apache-2.0
#include "models/family.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "formats/hf_config.h"

namespace coluber {
namespace {

std::string family_of(const std::string& config) {
  return find_family(parse_config(config, "config.json"), "config.json").model_type;
}

std::string refusal(const std::string& config) {
  try {
    const Json json = parse_config(config, "config.json");
    find_family(json, "config.json");
  } catch (const Error& error) {
    EXPECT_NE(error.code(), ErrorCode::kInternal);
    return error.what();
  }
  ADD_FAILURE() << "accepted: " << config;
  return {};
}

TEST(Family, TheModelTypeComesFirstThenTheArchitectures) {
  EXPECT_EQ(family_of(R"({"model_type": "mamba2", "architectures": ["Lfm2ForCausalLM"]})"), "mamba2");
  EXPECT_EQ(family_of(R"({"model_type": "mine", "architectures": [7, "Other", "FalconMambaForCausalLM"]})"),
            "falcon_mamba");
  EXPECT_EQ(family_of(R"({"architectures": ["MiniMaxForCausalLM"]})"), "minimax");
}

TEST(Family, ARefusalNamesWhatWasFoundAndWhatIsKnown) {
  for (const auto& [config, parts] : std::vector<std::pair<std::string, std::vector<std::string>>>{
           {R"({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]})", {"\"gpt2\"", "GPT2LMHeadModel"}},
           {R"({})", {"model_type is missing", "none named"}},
           {R"({"model_type": ["mamba"]})", {"should be a string", "array"}},
           {R"({"architectures": "MambaForCausalLM"})", {"none named"}},
           {R"({"d_model": 768, "ssm_cfg": {}})", {"mamba_ssm"}}}) {
    const std::string message = refusal(config);
    for (const std::string& part : parts)
      EXPECT_NE(message.find(part), std::string::npos) << part << " in: " << message;
    for (const char* known : {"config.json", "mamba", "mamba2", "falcon_mamba", "lfm2", "minimax"})
      EXPECT_NE(message.find(known), std::string::npos) << known << " in: " << message;
  }
}

class NamedTensors final : public WeightSource {
 public:
  explicit NamedTensors(std::vector<std::string> names) : names_(std::move(names)) {}
  bool contains(std::string_view name) const override {
    return std::find(names_.begin(), names_.end(), name) != names_.end();
  }
  TensorView get(std::string_view) const override { return {}; }
  std::vector<std::string> names() const override { return names_; }
  std::string describe() const override { return "weights.pth"; }

 private:
  std::vector<std::string> names_;
};

TEST(Family, ACheckpointThatNamesNoneIsRecognisedByItsTensors) {
  ModelRegistry::instance().add({"recognised_in_a_test",
                                 {},
                                 [](ModelLoadContext&) { return nullptr; },
                                 [](const std::string& config, const WeightSource& weights) {
                                   return config.find("mamba2") == std::string::npos && weights.contains("of.the.test");
                                 }});
  const NamedTensors known({"of.the.test"}), other({"of.another", "and.more"});
  EXPECT_EQ(find_family("", "weights.pth", known).model_type, "recognised_in_a_test");
  EXPECT_EQ(find_family("{}", "config.json", known).model_type, "recognised_in_a_test");
  EXPECT_EQ(find_family(R"({"model_type": "mamba2"})", "config.json", known).model_type, "mamba2")
      << "what the config names comes first";
  try {
    find_family("", "weights.pth", other);
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNotFound);
    for (const char* part : {"weights.pth", "no config.json", "\"of.another\"", "recognised_in_a_test"})
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << part << " in: " << error.what();
  }
  EXPECT_THROW(find_family("{}", "config.json", other), Error);
}

TEST(Family, LongNamesAreCutAndEscaped) {
  const std::string message = refusal(R"({"model_type": ")" + std::string(100000, 'x') + R"(\u0007"})");
  EXPECT_LT(message.size(), 1000u);
}

}  // namespace
}  // namespace coluber
