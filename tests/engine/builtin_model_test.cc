// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "base/json.h"
#include "base/source_folder_test.h"
#include "families.h"

namespace coluber {
namespace {

// expected.json was computed in float32 by another implementation; it is rounded to five decimals.
constexpr double kLogitTolerance = 2e-3;
constexpr double kUndecidedMargin = 1e-3;

TEST(BuiltinModel, GivesItsExpectedTextAndLogits) {
  EngineOptions options;
  options.model = source_folder() + "/models/asp-7m";
  auto engine = Engine::load(options);
  const Json expected = read_json_file(options.model + "/expected.json");
  for (const auto& [name, test] : expected.at("cases").as_object()) {
    SCOPED_TRACE(name);
    std::vector<int32_t> ids;
    for (const Json& id : test.at("prompt_ids").as_array()) ids.push_back(static_cast<int32_t>(id.as_int()));
    if (const Json* prompt = test.find("prompt")) {
      EXPECT_EQ(engine->encode(prompt->as_string()), ids);
    }
    auto session = engine->open_session();
    session->extend(ids);
    const Json::Array& top_ids = test.at("top5").at("ids").as_array();
    const Json::Array& top_logits = test.at("top5").at("logits").as_array();
    for (size_t i = 0; i < top_ids.size(); ++i)
      EXPECT_NEAR(session->last_logits()[static_cast<size_t>(top_ids[i].as_int())], top_logits[i].as_double(),
                  kLogitTolerance);
    const Json::Array& greedy_ids = test.at("greedy_ids").as_array();
    const RequestOutput output = session->generate(families::greedy(static_cast<int64_t>(greedy_ids.size())));
    ASSERT_EQ(output.tokens.size(), greedy_ids.size());
    bool all_equal = true;
    for (size_t i = 0; i < greedy_ids.size() && all_equal; ++i) {
      if (output.tokens[i].id == greedy_ids[i].as_int()) continue;
      all_equal = false;
      EXPECT_LT(test.at("greedy_margins").as_array()[i].as_double(), kUndecidedMargin) << "token " << i;
    }
    if (const Json* text = test.find("greedy_text"); text != nullptr && all_equal) {
      std::vector<int32_t> generated = families::ids_of(output);
      EXPECT_EQ(engine->decode(generated, false), text->as_string());
    }
  }
}

}  // namespace
}  // namespace coluber
