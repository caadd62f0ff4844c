// SPDX-License-Identifier: Apache-2.0
#include "text/grammar/grammar.h"

#include <gtest/gtest.h>

#include <chrono>

#include "base/json.h"

namespace coluber {
namespace {

// Letters, some longer tokens, an end; id 0 is a special token.
GrammarVocabulary vocabulary() {
  GrammarVocabulary v;
  v.tokens.emplace_back();
  for (int c = 1; c < 127; ++c) v.tokens.emplace_back(1, static_cast<char>(c));
  for (const char* more : {"{\"", "\":", "true", "null", "  ", "\xc3\xa9", "\xc3", "\xa9"}) v.tokens.emplace_back(more);
  v.end_ids = {static_cast<int32_t>(v.tokens.size())};
  v.tokens.emplace_back();
  return v;
}

class Grammars : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_grammars()) GTEST_SKIP() << "this build has no XGrammar";
    compiler_ = make_grammar_compiler(vocabulary());
  }

  std::shared_ptr<const CompiledGrammar> compiled(GrammarKind kind, const std::string& text,
                                                  std::vector<std::string> choices = {}) {
    auto made = compiler_->compile({kind, text, std::move(choices)});
    EXPECT_TRUE(made) << made.error().message;
    return made ? *made : nullptr;
  }

  Failure failure(GrammarKind kind, const std::string& text) {
    const auto made = compiler_->compile({kind, text, {}});
    EXPECT_FALSE(made) << text.substr(0, 100);
    return made ? Failure{} : made.error();
  }

  // Whether the text may be an answer, letter by letter.
  bool takes(const CompiledGrammar& grammar, std::string_view text) const {
    const auto matcher = grammar.matcher();
    std::vector<uint32_t> mask(8, ~uint32_t{0});
    for (const char c : text) {
      matcher->fill_mask(mask);
      const bool allowed = mask[static_cast<size_t>(c) / 32] >> (c % 32) & 1;
      EXPECT_EQ(allowed, matcher->accept(c)) << text;
      if (!allowed) return false;
    }
    return matcher->accept(end_) && matcher->is_terminated();
  }

  const int32_t end_ = vocabulary().end_ids[0];
  std::shared_ptr<GrammarCompiler> compiler_;
};

TEST_F(Grammars, HoldAnAnswerToASchema) {
  const auto grammar =
      compiled(GrammarKind::kJsonSchema,
               R"({"type":"object","properties":{"a":{"type":"integer","maximum":9},"b":{"enum":["x","y"]}},
                                    "required":["a"],"additionalProperties":false})");
  ASSERT_NE(grammar, nullptr);
  EXPECT_TRUE(takes(*grammar, R"({"a": 7})"));
  EXPECT_TRUE(takes(*grammar, R"({"a":7,"b":"y"})"));
  for (const char* wrong : {"", "7", "{}", R"({"a":12})", R"({"a":1,"b":"z"})", R"({"a":1,"c":1})", R"({"a":1)"})
    EXPECT_FALSE(takes(*grammar, wrong)) << wrong;
}

TEST_F(Grammars, HoldAnAnswerToOtherForms) {
  EXPECT_TRUE(takes(*compiled(GrammarKind::kJsonObject, ""), R"({"x":[1,{"y":null}]})"));
  EXPECT_FALSE(takes(*compiled(GrammarKind::kJsonObject, ""), "[1]"));
  EXPECT_TRUE(takes(*compiled(GrammarKind::kRegex, "^[a-c]{2,3}$"), "abc"));
  EXPECT_FALSE(takes(*compiled(GrammarKind::kRegex, "[a-c]{2,3}"), "a"));
  EXPECT_TRUE(takes(*compiled(GrammarKind::kEbnf, "root ::= \"a\" b\nb ::= \"b\" | \"(\""), "a("));
  const auto choice = compiled(GrammarKind::kChoice, "", {"yes", "no \"q\"\n\\"});
  EXPECT_TRUE(takes(*choice, "yes"));
  EXPECT_TRUE(takes(*choice, "no \"q\"\n\\"));
  EXPECT_FALSE(takes(*choice, "no"));
}

TEST_F(Grammars, GiveEverySequenceAMatcherOfItsOwnThatCanGoBack) {
  const auto grammar = compiled(GrammarKind::kRegex, "ab|cd");
  const auto first = grammar->matcher();
  ASSERT_TRUE(first->accept('a'));
  const auto fork = first->fork();
  EXPECT_TRUE(grammar->matcher()->accept('c'));
  ASSERT_TRUE(first->accept('b'));
  ASSERT_TRUE(first->accept(end_));
  EXPECT_TRUE(first->is_terminated());
  EXPECT_FALSE(first->accept('a'));
  first->rollback(3);
  EXPECT_FALSE(first->is_terminated());
  EXPECT_TRUE(first->accept('c'));
  EXPECT_FALSE(fork->accept('d'));
  EXPECT_TRUE(fork->accept('b'));
  EXPECT_FALSE(fork->accept(-1));
  EXPECT_FALSE(fork->accept(100'000));
}

TEST_F(Grammars, NeverAllowATokenWithoutBytes) {
  std::vector<uint32_t> mask(8, 0);
  compiled(GrammarKind::kRegex, "(.|\\n)*")->matcher()->fill_mask(mask);
  EXPECT_EQ(mask[0] & 1, 0U);
  EXPECT_NE(mask['a' / 32] >> ('a' % 32) & 1, 0U);
}

// What the library would pass over in silence makes answers that break the schema.
TEST_F(Grammars, RefuseWhatTheyCannotHoldAnAnswerTo) {
  for (const char* schema :
       {R"({"not":{"type":"string"}})", R"({"type":"array","items":{"type":"string"},"uniqueItems":true})",
        R"({"type":"object","properties":{"a":{"if":{},"then":{}}}})",
        R"({"anyOf":[{"type":"object"}],"required":["a"]})", R"({"type":"number","multipleOf":0.3})",
        R"({"$ref":"#/$defs/a","minLength":3,"$defs":{"a":{"type":"string"}}})",
        R"({"type":"string","pattern":"a+","maxLength":3})", R"({"type":"string","pattern":"a$b"})"})
    EXPECT_EQ(failure(GrammarKind::kJsonSchema, schema).code, ErrorCode::kUnsupported) << schema;
  EXPECT_NE(failure(GrammarKind::kJsonSchema, R"({"type":"object","properties":{"a":{"if":true}}})")
                .message.find("$.properties.a"),
            std::string::npos);
}

TEST_F(Grammars, SayWhatIsWrongWithASpec) {
  for (const auto& [kind, text] :
       std::vector<std::pair<GrammarKind, std::string>>{{GrammarKind::kJsonSchema, "{"},
                                                        {GrammarKind::kJsonSchema, "7"},
                                                        {GrammarKind::kJsonSchema, R"({"type":"text"})"},
                                                        {GrammarKind::kJsonSchema, R"({"$ref":"#/$defs/none"})"},
                                                        {GrammarKind::kRegex, "("},
                                                        {GrammarKind::kRegex, "(?=a)b"},
                                                        {GrammarKind::kRegex, ""},
                                                        {GrammarKind::kRegex, "[z-a]"},
                                                        {GrammarKind::kEbnf, "root = 1"},
                                                        {GrammarKind::kEbnf, "root ::= other"},
                                                        {GrammarKind::kStructure, "{}"},
                                                        {GrammarKind::kChoice, ""},
                                                        {GrammarKind::kRegex, std::string("a\0b", 3)},
                                                        {GrammarKind::kRegex, "\xff"}}) {
    const Failure found = failure(kind, text);
    EXPECT_EQ(found.code, ErrorCode::kInvalidArgument) << text;
    EXPECT_FALSE(found.message.empty());
    EXPECT_EQ(found.message.find(".cc"), std::string::npos) << found.message;
  }
}

std::string repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

TEST_F(Grammars, EndSoonWithBombs) {
  const auto start = std::chrono::steady_clock::now();
  failure(GrammarKind::kJsonSchema, repeated(R"({"type":"array","items":)", 60) + "{}" + repeated("}", 60));
  failure(GrammarKind::kRegex, repeated("(", 200) + "a" + repeated(")", 200));
  failure(GrammarKind::kRegex, "((((a{1,99}){1,99}){1,99}){1,99}){1,99}");
  failure(GrammarKind::kRegex, "a{99999999999999999999}");
  failure(GrammarKind::kEbnf, "root ::= ((\"a\"{900}){900}){900}");
  failure(GrammarKind::kJsonSchema, R"({"type":"string","description":")" + std::string(200'000, 'x') + "\"}");
  std::string values;
  for (int i = 0; i < 30'000; ++i) values += (i ? "," : "") + std::to_string(i % 10);
  failure(GrammarKind::kJsonSchema, "{\"enum\":[" + values + "]}");
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_LT(took.count(), 30.0);
}

TEST_F(Grammars, StopWaitingForACompilationThatTakesTooLong) {
  GrammarLimits limits;
  limits.max_seconds = 0.0;
  const auto hasty = make_grammar_compiler(vocabulary(), limits);
  const auto made = hasty->compile({GrammarKind::kRegex, "[a-z]{1,900}", {}});
  ASSERT_FALSE(made);
  EXPECT_NE(made.error().message.find("to compile"), std::string::npos);
}

}  // namespace
}  // namespace coluber
