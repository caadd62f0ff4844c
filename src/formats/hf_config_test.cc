// SPDX-License-Identifier: Apache-2.0
#include "formats/hf_config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "base/error.h"

namespace coluber {
namespace {

Json parse(std::string_view text) { return parse_config(text, "m/config.json"); }

std::string problems_of(const ConfigFields& fields) {
  try {
    fields.finish();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidConfig);
    return error.what();
  }
  return "";
}

TEST(ConfigFields, ReadEveryType) {
  const Json json = parse(R"({"i":3,"f":0.5,"d":2,"b":true,"s":"silu","li":[1,2],"ls":["a","b"],"ld":[0,1.5]})");
  int64_t i = 0;
  float f = 0;
  double d = 0;
  bool b = false;
  std::string s;
  std::vector<int64_t> li;
  std::vector<std::string> ls;
  std::vector<double> ld;
  ConfigFields fields(json, "m/config.json");
  fields.required("i", &i).required("f", &f).required("d", &d).required("b", &b).required("s", &s).required("li", &li);
  fields.required("ls", &ls).required("ld", &ld).finish();
  EXPECT_EQ(i, 3);
  EXPECT_EQ(f, 0.5F);
  EXPECT_EQ(d, 2.0);
  EXPECT_TRUE(b);
  EXPECT_EQ(s, "silu");
  EXPECT_EQ(li, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(ls, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(ld, (std::vector<double>{0, 1.5}));
}

TEST(ConfigFields, EveryProblemIsInOneMessageWithFileAndModelType) {
  const Json json = parse(R"({"model_type":"mamba2","vocab_size":-5,"hidden_size":"wide","heads":null,"act":"gelu",
                              "eps":[1],"list":[1,"x"],"half":2.5,"flag":1})");
  int64_t vocab = 0, hidden = 0, heads = 0, half = 0, missing = 0;
  std::string act;
  double eps = 0;
  std::vector<int64_t> list;
  bool flag = false;
  ConfigFields fields(json, "m/config.json");
  fields.required("vocab_size", &vocab, positive())
      .required("hidden_size", &hidden, positive())
      .required("heads", &heads);
  fields.required("act", &act, one_of({"silu", "relu"})).optional("eps", &eps, 1e-5).optional("list", &list, {});
  fields.optional("half", &half, 2).required("missing", &missing, between(1, 8)).optional("flag", &flag, false);
  fields.check(false, "heads must divide hidden_size");
  const std::string text = problems_of(fields);
  EXPECT_EQ(text,
            "m/config.json (model_type \"mamba2\"): 10 problems:\n"
            "  - vocab_size: expected an integer above 0, found -5\n"
            "  - hidden_size: expected an integer above 0, found \"wide\"\n"
            "  - heads: missing; expected an integer\n"
            "  - act: expected a string out of \"silu\", \"relu\", found \"gelu\"\n"
            "  - eps: expected a number, found [1]\n"
            "  - list: item 1: expected an integer, found \"x\"\n"
            "  - half: expected an integer, found 2.5\n"
            "  - missing: missing; expected an integer from 1 to 8\n"
            "  - flag: expected true or false, found 1\n"
            "  - heads must divide hidden_size");
}

TEST(ConfigFields, NullIsAbsentWhereTheFieldIsOptional) {
  const Json json = parse(R"({"a":null,"b":null,"c":7})");
  int64_t a = 0;
  std::optional<int64_t> b = 1, c, d;
  ConfigFields fields(json, "x");
  fields.optional("a", &a, 16, positive()).optional("b", &b).optional("c", &c, positive()).optional("d", &d).finish();
  EXPECT_EQ(a, 16);
  EXPECT_EQ(b, std::nullopt);
  EXPECT_EQ(c, 7);
  EXPECT_EQ(d, std::nullopt);
  EXPECT_FALSE(fields.has("a"));
  EXPECT_TRUE(fields.has("c"));
}

TEST(ConfigFields, IntegralDoublesAreIntegersAndHugeOnesAreRefused) {
  const Json json = parse(R"({"a":1.0,"b":2147483648,"c":2147483649,"d":1e30,"e":9007199254740992,"f":-2147483649})");
  int64_t a = 0, b = 0, c = 0, d = 0, e = 0, f = 0;
  ConfigFields fields(json, "x");
  fields.required("a", &a).required("b", &b).optional("e", &e, 0, unbounded());
  EXPECT_TRUE(fields.ok());
  EXPECT_EQ(a, 1);
  EXPECT_EQ(b, 2147483648);
  EXPECT_EQ(e, 9007199254740992);
  fields.required("c", &c).required("d", &d).required("f", &f);
  const std::string text = problems_of(fields);
  EXPECT_NE(text.find("3 problems"), std::string::npos) << text;
  EXPECT_EQ(c, 1) << "later arithmetic must be harmless";
}

TEST(ConfigFields, BothSpellingsOfInfinityAreRead) {
  for (const char* text :
       {R"({"time_step_limit":[0.0,{"__float__":"Infinity"}]})", R"({"time_step_limit":[0.0,Infinity]})"}) {
    const Json json = parse(text);
    std::vector<double> limit;
    ConfigFields fields(json, "x");
    fields.required("time_step_limit", &limit, at_least(0)).finish();
    EXPECT_EQ(limit, (std::vector<double>{0.0, kInfinity})) << text;
  }
  const Json json = parse(R"({"a":-Infinity,"n":NaN,"i":Infinity,"tag":{"__float__":"inf"},"p":Infinity})");
  double a = 0, n = 0, tag = 0, p = 0;
  int64_t i = 0;
  ConfigFields fields(json, "x");
  fields.required("a", &a)
      .required("n", &n)
      .required("tag", &tag)
      .required("i", &i)
      .required("p", &p, positive_finite());
  EXPECT_EQ(a, -kInfinity);
  EXPECT_NE(problems_of(fields).find("4 problems"), std::string::npos) << problems_of(fields);
}

TEST(ConfigFields, FloatsThatDoNotFitFloat32AreRefused) {
  const Json json = parse(R"({"big":1e39,"tiny":1e-50})");
  float big = 0, tiny = 0;
  ConfigFields fields(json, "x");
  fields.required("big", &big).required("tiny", &tiny, positive());
  EXPECT_NE(problems_of(fields).find("2 problems"), std::string::npos) << problems_of(fields);
}

TEST(ConfigFields, OtherNamesAreReadAndMayNotDisagree) {
  const Json json = parse(R"({"d_model":8,"n_layer":4,"num_hidden_layers":4,"state":16,"d_state":32})");
  int64_t hidden = 0, layers = 0, state = 0;
  ConfigFields fields(json, "x");
  fields.alias("hidden_size", {"n_embd", "d_model"})
      .alias("num_hidden_layers", {"n_layer"})
      .alias("state", {"d_state"});
  fields.required("hidden_size", &hidden, positive()).required("num_hidden_layers", &layers);
  EXPECT_TRUE(fields.ok());
  EXPECT_EQ(hidden, 8);
  EXPECT_EQ(layers, 4);
  fields.required("state", &state);
  const std::string text = problems_of(fields);
  EXPECT_NE(text.find("state is 16, but its other spelling d_state is 32"), std::string::npos) << text;
}

TEST(ConfigFields, AProblemNamesTheSpellingThatIsInTheFile) {
  const Json json = parse(R"({"d_model":-1})");
  int64_t hidden = 0;
  ConfigFields fields(json, "x");
  fields.alias("hidden_size", {"d_model"}).required("hidden_size", &hidden, positive());
  EXPECT_NE(problems_of(fields).find("- d_model: expected"), std::string::npos);
}

TEST(ConfigFields, NestedObjectsReportUnderTheirPath) {
  const Json json = parse(R"({"rope_parameters":{"rope_theta":"x"},"other":5})");
  double theta = 0, absent = 0;
  ConfigFields fields(json, "x");
  ConfigFields rope = fields.nested("rope_parameters");
  rope.required("rope_theta", &theta, positive());
  ConfigFields none = fields.nested("not_there");
  none.optional("factor", &absent, 2.5);
  fields.nested("other");
  EXPECT_EQ(absent, 2.5);
  const std::string text = problems_of(fields);
  EXPECT_NE(text.find("rope_parameters.rope_theta: expected a number above 0, found \"x\""), std::string::npos) << text;
  EXPECT_NE(text.find("other: expected an object, found 5"), std::string::npos) << text;
}

TEST(ConfigFields, ConditionsAreNotEvaluatedOnWrongValues) {
  const Json json = parse(R"({"heads":0})");
  int64_t heads = 0;
  ConfigFields fields(json, "x");
  fields.required("heads", &heads, positive());
  bool evaluated = false;
  fields.check([&] { return evaluated = true; }, "never said");
  fields.check([] { return false; }, "never said");
  EXPECT_FALSE(evaluated);
  EXPECT_EQ(problems_of(fields).find("never said"), std::string::npos);
}

TEST(ConfigFields, ChecksAcceptAndRefuse) {
  const Json json = parse(R"({"six":6,"zero":0,"four":4})");
  const auto accepts = [&json](const char* key, const FieldCheck& check) {
    int64_t value = 0;
    ConfigFields fields(json, "x");
    return fields.required(key, &value, check).ok();
  };
  EXPECT_TRUE(accepts("six", multiple_of(3)));
  EXPECT_FALSE(accepts("four", multiple_of(3)));
  EXPECT_FALSE(accepts("zero", multiple_of(3)));
  EXPECT_TRUE(accepts("six", divides(12, "hidden_size")));
  EXPECT_FALSE(accepts("six", divides(10, "hidden_size")));
  EXPECT_FALSE(accepts("zero", divides(12, "hidden_size")));
  EXPECT_TRUE(accepts("zero", at_least(0)));
  EXPECT_FALSE(accepts("zero", positive()));
  EXPECT_TRUE(accepts("four", one_of_numbers({2, 4})));
  EXPECT_FALSE(accepts("six", one_of_numbers({2, 4})));
  EXPECT_TRUE(accepts("six", between(6, 6)));
}

TEST(ConfigFields, AListMayBeOneInteger) {
  const Json json = parse(R"({"one":2,"more":[2,3],"bad":"x","worse":[2,"x"]})");
  std::vector<int64_t> one, more, none{9}, bad;
  ConfigFields fields(json, "x");
  fields.list_or_one("one", &one).list_or_one("more", &more).list_or_one("none", &none);
  EXPECT_TRUE(fields.ok());
  EXPECT_EQ(one, std::vector<int64_t>{2});
  EXPECT_EQ(more, (std::vector<int64_t>{2, 3}));
  EXPECT_TRUE(none.empty());
  fields.list_or_one("bad", &bad).list_or_one("worse", &bad);
  EXPECT_NE(problems_of(fields).find("2 problems"), std::string::npos);
}

TEST(ConfigFields, WhatIsNoObjectIsToldOnce) {
  const Json json = parse("[1]");
  int64_t value = 0;
  ConfigFields fields(json, "m/config.json");
  fields.optional("x", &value, 3);
  EXPECT_EQ(problems_of(fields), "m/config.json: 1 problem:\n  - expected a JSON object, found [1]");
}

TEST(ConfigFields, WhatIsNoNumberIsToldAsItStands) {
  const Json json = parse(R"({"a": NaN, "b": Infinity, "c": -Infinity})");
  ConfigFields fields(json, "m/config.json");
  int64_t a = 0, b = 0, c = 0;
  const std::string text = problems_of(fields.required("a", &a).required("b", &b).required("c", &c));
  for (const char* part : {"found NaN", "found Infinity", "found -Infinity"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
}

TEST(ConfigFields, LongValuesAreCutInTheMessage) {
  const Json json = parse("{\"x\":\"" + std::string(79, 'a') + "\xc3\xa9 and so on\"}");
  int64_t value = 0;
  ConfigFields fields(json, "p");
  fields.required("x", &value);
  const std::string text = problems_of(fields);
  EXPECT_LT(text.size(), 200U);
  EXPECT_EQ(text.find('\xc3'), std::string::npos) << "a character was cut in half";
}

TEST(ConfigFile, WhatIsNoJsonIsToldWithItsPlace) {
  try {
    parse("{\n\"a\": }");
    FAIL() << "did not throw";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidConfig);
    EXPECT_NE(std::string(error.what()).find("m/config.json: not valid JSON at line 2, column 6"), std::string::npos)
        << error.what();
  }
}

TEST(ConfigFile, PublishedOnesAreRead) {
  const std::filesystem::path golden = std::filesystem::path(COLUBER_SOURCE_DIR) / "../shared/golden";
  if (!std::filesystem::is_directory(golden)) GTEST_SKIP() << "no reference checkpoints beside this tree";
  int read = 0;
  for (const auto& item : std::filesystem::directory_iterator(golden)) {
    const std::string path = (item.path() / "config.json").string();
    if (!std::filesystem::exists(path)) continue;
    const Json json = read_config_file(path);
    EXPECT_TRUE(json.is_object()) << path;
    ++read;
  }
  EXPECT_GT(read, 0);
}

}  // namespace
}  // namespace coluber
