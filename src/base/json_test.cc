// SPDX-License-Identifier: Apache-2.0
#include "base/json.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>

namespace coluber {
namespace {

Json parse(std::string_view text, const JsonParseOptions& options = {}) {
  Result<Json> json = parse_json(text, "test", options);
  EXPECT_TRUE(json.has_value()) << (json ? "" : json.error().message);
  return json ? std::move(*json) : Json();
}

std::string error_of(std::string_view text, const JsonParseOptions& options = {}) {
  const Result<Json> json = parse_json(text, "test", options);
  EXPECT_FALSE(json.has_value());
  return json ? "" : json.error().message;
}

TEST(JsonParse, ReadsEveryKindOfValue) {
  const Json json = parse(R"( {"n":null,"t":true,"i":-7,"d":0.5,"s":"a\u00e9\n","l":[1,[2,{}]],"o":{"x":1}} )");
  EXPECT_TRUE(json.at("n").is_null());
  EXPECT_TRUE(json.at("t").as_bool());
  EXPECT_EQ(json.at("i").as_int(), -7);
  EXPECT_EQ(json.at("d").as_double(), 0.5);
  EXPECT_EQ(json.at("i").as_double(), -7.0);
  EXPECT_EQ(json.at("s").as_string(), "a\xc3\xa9\n");
  EXPECT_EQ(json.at("l").as_array().at(1).as_array().at(0).as_int(), 2);
  EXPECT_EQ(json.at("o").at("x").as_int(), 1);
}

TEST(JsonParse, KeepsTheOrderOfKeys) {
  const Json json = parse(R"({"z":1,"a":2,"m":3})");
  std::string order;
  for (const auto& [key, value] : json.as_object()) order += key;
  EXPECT_EQ(order, "zam");
}

TEST(JsonParse, ADuplicateKeyKeepsItsLastValueAtItsFirstPlace) {
  EXPECT_EQ(parse(R"({"a":1,"b":2,"a":3})").dump(), R"({"a":3,"b":2})");
  // Large objects take another way to the same result.
  std::string text = "{";
  for (int i = 0; i < 1000; ++i) text += "\"key number " + std::to_string(i % 700) + "\":" + std::to_string(i) + ",";
  text += "\"end\":0}";
  const Json json = parse(text);
  ASSERT_EQ(json.as_object().size(), 701U);
  for (int i = 0; i < 700; ++i) {
    const auto& [key, value] = json.as_object()[static_cast<size_t>(i)];
    EXPECT_EQ(key, "key number " + std::to_string(i));
    EXPECT_EQ(value.as_int(), i < 300 ? 700 + i : i);
  }
}

TEST(JsonParse, RefusesDuplicateKeysWhereAsked) {
  const JsonParseOptions strict{.allow_python_constants = false, .refuse_duplicate_keys = true};
  EXPECT_NE(error_of(R"({"x":{"a":1,"a":1}})", strict).find("\"a\" occurs twice"), std::string::npos);
  EXPECT_EQ(parse(R"({"a":{"b":1},"b":1})", strict).as_object().size(), 2U);
  std::string text = "{";
  for (int i = 0; i < 100; ++i) text += "\"k" + std::to_string(i) + "\":0,";
  EXPECT_NE(error_of(text + "\"k50\":1}", strict).find("\"k50\" occurs twice"), std::string::npos);
}

TEST(JsonParse, KeysThatDifferOnlyInZeroBytesAreTwo) {
  std::string text = "{";
  for (int i = 0; i < 40; ++i) text += "\"pad" + std::to_string(i) + "\":0,";
  const Json json = parse(text + R"("a":1,"a\u0000":2})");
  EXPECT_EQ(json.as_object().size(), 42U);
  EXPECT_EQ(json.at("a").as_int(), 1);
}

TEST(JsonParse, IntegersBeyondInt64AreDoubles) {
  EXPECT_EQ(parse("9223372036854775807").as_int(), INT64_MAX);
  EXPECT_EQ(parse("-9223372036854775808").as_int(), INT64_MIN);
  EXPECT_FALSE(parse("9223372036854775808").is_int());
  EXPECT_EQ(parse("9223372036854775808").as_double(), 9223372036854775808.0);
  EXPECT_EQ(parse("-9223372036854775809").as_double(), -9223372036854775808.0);
  EXPECT_EQ(parse("100000000000000000000000000").as_double(), 1e26);
}

TEST(JsonParse, SaysLineAndColumnOfAMistake) {
  EXPECT_NE(error_of("{\n  \"a\": 1,\n  \"b\": tru\n}").find("line 3, column"), std::string::npos);
  EXPECT_NE(error_of("[1, 2").find("test: not valid JSON at line 1, column 6"), std::string::npos) << error_of("[1, 2");
  for (const char* text : {"", "{", "[1,]", "{\"a\":1,}", "01", "1 2", "\"\\x\"", "\"\x01\"", "nul", "[1}", "\"\xff\"",
                           "NaN", "Infinity", "'a'", "{a:1}", "1e999"}) {
    EXPECT_FALSE(error_of(text).empty()) << text;
  }
}

TEST(JsonParse, RefusesDeepNestingAndSaysWhere) {
  const std::string deepest = std::string(kMaxJsonDepth, '[') + std::string(kMaxJsonDepth, ']');
  EXPECT_TRUE(parse(deepest).is_array());
  const std::string message = error_of("\n" + std::string(1'000'000, '['));
  EXPECT_NE(message.find("deeper than 128 levels at line 2, column 129"), std::string::npos) << message;
  std::string objects;
  for (int i = 0; i < 200; ++i) objects += "{\"[[[[\":";
  EXPECT_NE(error_of(objects).find("deeper than 128 levels"), std::string::npos);
}

TEST(JsonParse, ReadsPythonConstantsOnlyWhereAllowed) {
  const JsonParseOptions python{.allow_python_constants = true, .refuse_duplicate_keys = false};
  const Json json =
      parse("{\"NaN\": [Infinity,-Infinity , NaN, 1.5, -2],\n \"s\":\"Infinity \\\" NaN\", \"x\": 12}", python);
  const Json::Array& list = json.at("NaN").as_array();
  EXPECT_EQ(list[0].as_double(), INFINITY);
  EXPECT_EQ(list[1].as_double(), -INFINITY);
  EXPECT_TRUE(std::isnan(list[2].as_double()));
  EXPECT_EQ(list[3].as_double(), 1.5);
  EXPECT_EQ(list[4].as_int(), -2);
  EXPECT_EQ(json.at("s").as_string(), "Infinity \" NaN");
  EXPECT_EQ(json.at("x").as_int(), 12);
  for (const char* text : {"[Infinity", "12Infinity", "NaN1", "Infinit", "[-NaN]", "+Infinity"}) {
    EXPECT_FALSE(error_of(text, python).empty()) << text;
  }
}

TEST(JsonParse, LargeObjectsTakeTimeInProportion) {
  std::string text = "{";
  for (int i = 0; i < 250000; ++i)
    text += "\"the same first bytes " + std::to_string(i) + "\":" + std::to_string(i) + ",";
  text += "\"last\":1}";
  const auto start = std::chrono::steady_clock::now();
  const Json json = parse(text);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_EQ(json.as_object().size(), 250001U);
  EXPECT_EQ(json.at("last").as_int(), 1);
  // 0.15 s measured; comparing all pairs would take minutes. Wide for sanitizers and busy machines.
  EXPECT_LT(took.count(), 20.0);
}

TEST(JsonValue, NamesBothTypesWhereTheyDiffer) {
  try {
    parse("[1]").as_object();
    FAIL() << "did not throw";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidData);
    EXPECT_STREQ(error.what(), "expected a JSON value of type object, found array");
  }
  EXPECT_THROW(parse("1.5").as_int(), Error);
  EXPECT_THROW(parse("1").as_bool(), Error);
  EXPECT_THROW(parse("{}").at("x"), Error);
  EXPECT_THROW(parse("[]").at("x"), Error);
  EXPECT_EQ(parse("[]").find("x"), nullptr);
}

TEST(JsonValue, CanBeBuilt) {
  Json json;
  json.set("b", 1).as_int();
  json.set("a", Json::Array{1, "two", 3.0, nullptr, true});
  json.set("b", "new");
  json.set("list", Json()).push_back(4);
  EXPECT_EQ(json.dump(), R"({"b":"new","a":[1,"two",3.0,null,true],"list":[4]})");
}

TEST(JsonDump, IsReadBackUnchanged) {
  const std::string text =
      R"({"i":-9223372036854775808,"d":[0.1,1e-05,1e+300,100.0,-0.0],"s":"\"\\\b\f\n\r\t\u0001é😀","e":[{},[]]})";
  EXPECT_EQ(parse(text).dump(), text);
  EXPECT_EQ(parse(parse(text).dump(2)), parse(text));
  EXPECT_EQ(parse(parse(text).dump(-1, true)), parse(text));
}

TEST(JsonDump, IndentsAndEscapes) {
  EXPECT_EQ(parse(R"({"a":[1,{}],"b":[]})").dump(2), "{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"b\": []\n}");
  EXPECT_EQ(Json("é😀").dump(-1, true), R"("\u00e9\ud83d\ude00")");
}

TEST(JsonDump, InvalidUtf8AndInfinityCannotMakeInvalidJson) {
  EXPECT_EQ(Json("a\xff"
                 "b\xe2\x82")
                .dump(),
            "\"a\xef\xbf\xbd"
            "b\xef\xbf\xbd\"");
  EXPECT_EQ(Json("\xed\xa0\x80").dump(-1, true), R"("\ufffd\ufffd\ufffd")");  // a surrogate is no character
  EXPECT_EQ(Json("\xc0\xaf").dump(-1, true), R"("\ufffd\ufffd")");            // nor is an overlong form
  EXPECT_EQ(Json(Json::Array{INFINITY, NAN}).dump(), "[null,null]");
}

TEST(JsonDump, DepthDoesNotMatter) {
  Json json = 1;
  for (int i = 0; i < 1000; ++i) json = Json(Json::Array{std::move(json)});
  const std::string text = json.dump();
  EXPECT_EQ(text, std::string(1000, '[') + "1" + std::string(1000, ']'));
}

TEST(JsonFile, NamesTheFile) { EXPECT_THROW(read_json_file("/nonexistent/x.json"), Error); }

}  // namespace
}  // namespace coluber
