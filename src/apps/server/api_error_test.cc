// SPDX-License-Identifier: Apache-2.0
#include "apps/server/api_error.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/server/json_fields.h"

namespace coluber::server {
namespace {

TEST(ApiError, EveryErrorCodeHasAStatusOfItsKind) {
  for (int i = static_cast<int>(ErrorCode::kInvalidArgument); i <= static_cast<int>(ErrorCode::kInternal); ++i) {
    const auto code = static_cast<ErrorCode>(i);
    EXPECT_GE(http_status(code), 400) << error_code_name(code);
    EXPECT_EQ(api_error(Failure{code, "m", "p"}).status, http_status(code));
  }
  EXPECT_EQ(http_status(ErrorCode::kInvalidArgument), 400);
  EXPECT_EQ(http_status(ErrorCode::kResourceExhausted), 503);
  EXPECT_EQ(http_status(ErrorCode::kInternal), 500);
}

TEST(ApiError, TheShapeIsOpenAis) {
  EXPECT_EQ(api_error(Failure{ErrorCode::kContextLength, "too long", "prompt"}).json().dump(),
            "{\"error\":{\"message\":\"too long\",\"type\":\"invalid_request_error\",\"param\":\"prompt\","
            "\"code\":\"context_length_exceeded\"}}");
  EXPECT_EQ(api_error(429, "later", "queue_full").json().dump(),
            "{\"error\":{\"message\":\"later\",\"type\":\"rate_limit_error\",\"param\":null,\"code\":\"queue_full\"}}");
}

Json object(std::string_view text) { return value_or_throw(parse_json(text, "test")); }

TEST(JsonFields, AFieldThatNobodyAsksForIsRefusedByName) {
  const Json json = object(R"({"known": 1, "gone": null, "strange": 2})");
  JsonFields fields(json);
  int64_t value = 0;
  EXPECT_TRUE(fields.integer("known", 0, 5, &value));
  EXPECT_EQ(value, 1);
  const auto failure = fields.finish();
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->param, "strange");
}

TEST(JsonFields, ValuesOfOtherTypesAndRangesAreRefusedAndLeftAlone) {
  for (const char* text : {R"({"a": 6})", R"({"a": -1})", R"({"a": 1.5})", R"({"a": "1"})", R"({"a": true})",
                           R"({"a": [1]})", R"({"a": 99999999999999999999})"}) {
    const Json json = object(text);
    JsonFields fields(json);
    int64_t value = 3;
    EXPECT_FALSE(fields.integer("a", 0, 5, &value)) << text;
    EXPECT_EQ(value, 3) << text;
    const auto failure = fields.finish();
    ASSERT_TRUE(failure) << text;
    EXPECT_EQ(failure->param, "a");
  }
}

TEST(JsonFields, WholeNumbersMayBeWrittenWithAPoint) {
  for (const auto& [text, expected] : std::vector<std::pair<std::string, std::optional<int64_t>>>{{"1", 1},
                                                                                                  {"1.0", 1},
                                                                                                  {"-2.0", -2},
                                                                                                  {"-0.0", 0},
                                                                                                  {"1e2", 100},
                                                                                                  {"1.5", {}},
                                                                                                  {"0.9999999", {}},
                                                                                                  {"101.0", {}},
                                                                                                  {"1e300", {}},
                                                                                                  {"\"1\"", {}},
                                                                                                  {"true", {}}}) {
    const Json json = object("{\"n\": " + text + "}");
    JsonFields fields(json);
    int64_t n = 77;
    EXPECT_EQ(fields.integer("n", -100, 100, &n), expected.has_value()) << text;
    EXPECT_EQ(n, expected.value_or(77)) << text;
    EXPECT_EQ(fields.finish().has_value(), !expected) << text;
  }
}

TEST(JsonFields, WhatIsNotSupportedPassesOnlyWhereItChangesNothing) {
  const Json json = object(R"({"off": false, "on": true, "null": null})");
  JsonFields fields(json);
  fields.refuse("off", "why", Json(false));
  fields.refuse("null", "why");
  fields.refuse("absent", "why");
  fields.refuse("on", "why", Json(false));
  const auto failure = fields.finish();
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->param, "on");
  EXPECT_EQ(failure->code, ErrorCode::kUnsupported);
}

TEST(JsonFields, AReaderOfAnEmptyObjectTellsWhatItWouldTake) {
  const Json empty(Json::Object{});
  FieldList list;
  JsonFields fields(empty, &list);
  Json body;
  int64_t n = 0;
  std::string text;
  fields.integer("n", 1, 5, &n);
  fields.choice("kind", {"a", "b"}, &text);
  fields.refuse("store", "nothing is kept", Json(false));
  fields.note("user");
  fields.object("options", [&body](JsonFields& inner) { inner.pass_on("heat", body, "temperature"); });
  FieldList passed;
  JsonFields other(empty, &passed);
  double heat = 0.0;
  other.number("temperature", 0, 2, &heat);
  EXPECT_EQ(list.schema(&passed).dump(),
            R"({"type":"object","properties":{"n":{"type":["integer","null"],"minimum":1,"maximum":5},)"
            R"("kind":{"enum":["a","b",null]},)"
            R"("store":{"enum":[false,null],"description":"not supported: nothing is kept"},)"
            R"("user":{"description":"taken; changes nothing"},)"
            R"("options":{"type":["object","null"],"properties":{"heat":{"type":["number","null"],"minimum":0.0,)"
            R"("maximum":2.0}},"additionalProperties":false}},"additionalProperties":false})");
}

TEST(JsonFields, FieldsOfAnInnerObjectAreToldWithItsName) {
  for (const auto& [text, param] :
       {std::pair{R"({"options": {"hot": 1}})", "options.hot"},
        std::pair{R"({"options": {"heat": "x"}})", "options.heat"}, std::pair{R"({"options": 3})", "options"}}) {
    const Json json = object(text);
    JsonFields fields(json);
    double heat = 0.0;
    fields.object("options", [&heat](JsonFields& inner) { inner.number("heat", 0, 2, &heat); });
    const auto failure = fields.finish();
    ASSERT_TRUE(failure) << text;
    EXPECT_EQ(failure->param, param);
  }
}

}  // namespace
}  // namespace coluber::server
