// SPDX-License-Identifier: Apache-2.0
#include "text/tool_parser/tool_parser.h"

#include <gtest/gtest.h>

#include "text/grammar/grammar.h"
#include "text/tool_parser/answer_reader.h"
#include "text/tool_parser/python_value.h"

namespace coluber {
namespace {

const Json& tools() {
  static const Json made = *parse_json(R"([
    {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {
        "city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"], "additionalProperties": false}}},
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}])",
                                       "tools");
  return made;
}

struct Told {
  std::string reasoning, content;
  std::vector<std::pair<std::string, std::string>> calls;
  std::vector<std::string> ids;
  bool operator==(const Told&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Told& told) {
  out << "[" << told.reasoning << "] [" << told.content << "]";
  for (const auto& [name, arguments] : told.calls) out << " " << name << "(" << arguments << ")";
  return out;
}

void add(Told& told, const AnswerDelta& delta) {
  told.reasoning += delta.reasoning;
  told.content += delta.content;
  for (const CallDelta& call : delta.calls) {
    const auto index = static_cast<size_t>(call.index);
    ASSERT_LE(index, told.calls.size());
    if (index == told.calls.size()) {
      EXPECT_FALSE(call.name.empty());
      told.calls.emplace_back(call.name, "");
      told.ids.push_back(call.id);
    } else {
      EXPECT_TRUE(call.name.empty());
    }
    told.calls[index].second += call.arguments;
  }
}

AnswerReading reading(std::string_view format) {
  AnswerReading made;
  made.calls = find_tool_format(format);
  made.tools = tools();
  return made;
}

Told read(const AnswerReading& how, const std::vector<std::string_view>& pieces) {
  AnswerReader reader(how);
  Told told;
  for (size_t i = 0; i < pieces.size(); ++i) add(told, reader.push(pieces[i], i + 1 == pieces.size()));
  return told;
}

// However it is cut in two or three, or into single characters.
void expect(const AnswerReading& how, std::string_view text, const Told& expected) {
  EXPECT_EQ(read(how, {text}), expected) << text;
  std::vector<std::string_view> letters;
  for (size_t i = 0; i < text.size(); ++i) letters.push_back(text.substr(i, 1));
  if (letters.empty()) letters.emplace_back();
  EXPECT_EQ(read(how, letters), expected) << text;
  for (size_t a = 0; a <= text.size(); ++a) {
    for (size_t b = a; b <= text.size(); b += 7)
      ASSERT_EQ(read(how, {text.substr(0, a), text.substr(a, b - a), text.substr(b)}), expected)
          << text << " cut at " << a << " and " << b;
  }
}

Told told(std::string content, std::vector<std::pair<std::string, std::string>> calls = {},
          std::vector<std::string> ids = {}) {
  Told made{{}, std::move(content), std::move(calls), std::move(ids)};
  made.ids.resize(made.calls.size());
  return made;
}

TEST(ToolParsers, ReadEveryFamilysCalls) {
  const std::string a = R"({"city": "Oslo \"}<", "days": 2})";
  for (const auto& [format, text, expected] : std::vector<std::tuple<std::string, std::string, Told>>{
           {"hermes",
            "I look.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": " + a +
                "}\n</tool_call>\n<tool_call>{\"name\": \"now\"}</tool_call>\nDone.",
            told("I look.\n\n\nDone.", {{"weather", a}, {"now", "{}"}})},
           {"hermes", "<tool_call>{\"arguments\": {\"x\": [1, 2]}, \"name\": \"other\"}</tool_call>",
            told("", {{"other", "{\"x\": [1, 2]}"}})},
           {"hermes", "<tool_call>{\"name\": \"now\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>",
            told("", {{"now", "{\"a\": 1}"}})},
           {"llama3_json",
            "{\"name\": \"weather\", \"parameters\": " + a + "}; {\"name\": \"now\", \"parameters\": {}}",
            told("", {{"weather", a}, {"now", "{}"}})},
           {"llama3_json", "Sure: <|python_tag|>{\"name\": \"now\", \"parameters\": {}} ok",
            told("Sure: ok", {{"now", "{}"}})},
           {"mistral",
            "Hm [TOOL_CALLS][{\"name\": \"weather\", \"arguments\": " + a +
                "}, {\"name\": \"now\", \"arguments\": {}}] end",
            told("Hm  end", {{"weather", a}, {"now", "{}"}})},
           {"mistral", "Hm[TOOL_CALLS]weather[CALL_ID]q1[ARGS]" + a + "[TOOL_CALLS]now[ARGS]{} end",
            told("Hm end", {{"weather", a}, {"now", "{}"}}, {"q1", ""})},
           {"granite",
            "<|tool_call|>[{\"name\": \"weather\", \"arguments\": " + a + "}, {\"name\": \"now\", \"arguments\": {}}]",
            told("", {{"weather", a}, {"now", "{}"}})},
           {"nemotron", "So <TOOLCALL>[{\"name\": \"weather\", \"arguments\": " + a + "}]</TOOLCALL> done",
            told("So  done", {{"weather", a}})},
           {"kimi",
            "So<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|> " + a +
                " <|tool_call_end|><|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|><|"
                "tool_calls_section_end|>!",
            told("So!", {{"weather", a}, {"now", "{}"}}, {"functions.weather:0", "functions.now:1"})},
           {"minimax_m1",
            "<tool_calls>\n{\"name\": \"weather\", \"arguments\": " + a +
                "}\n{\"name\": \"now\", \"arguments\": {}}\n</tool_calls>",
            told("", {{"weather", a}, {"now", "{}"}})},
           {"minimax_m2",
            "Ok <minimax:tool_call>\n<invoke name=\"weather\">\n<parameter name=\"city\">Oslo "
            "<b></parameter>\n<parameter name=\"days\">2</parameter>\n</invoke>\n<invoke "
            "name=\"now\">\n</invoke>\n</minimax:tool_call> x",
            told("Ok  x", {{"weather", "{\"city\": \"Oslo <b>\", \"days\": 2}"}, {"now", "{}"}})},
           {"qwen3_xml",
            "Ok\n<tool_call>\n<function=weather>\n<parameter=city>\n12\n</parameter>\n<parameter=days>\n3\n</"
            "parameter>\n</function>\n</tool_call>",
            told("Ok", {{"weather", "{\"city\": \"12\", \"days\": 3}"}})},
           {"lfm2",
            "Look <|tool_call_start|>[weather(city='It\\'s, (a)', days=[1, {'k': True}]), now()]<|tool_call_end|> then",
            told("Look  then", {{"weather", "{\"city\": \"It's, (a)\", \"days\": [1,{\"k\":true}]}"}, {"now", "{}"}})},
           {"lfm2", "<|tool_call_start|>[{\"name\": \"now\", \"arguments\": {}}]<|tool_call_end|>",
            told("", {{"now", "{}"}})},
           {"json",
            "Well [{\"name\": \"weather\", \"arguments\": " + a + "}] and {\"name\": \"now\", \"arguments\": {}}.",
            told("Well  and .", {{"weather", a}, {"now", "{}"}})}})
    expect(reading(format), text, expected);
}

TEST(ToolParsers, LeaveTextThatIsNoCallAsItIs) {
  for (const ToolFormat* format : tool_formats()) {
    for (const std::string& text :
         {std::string("Just text, with <tags>, [lists], {braces} and \"quotes\".\n\n"), std::string(),
          std::string("  \n"), std::string("{\"name\": \"unknown\", \"arguments\": {}}"),
          std::string("{\"a\": {\"name\": 1}} f(x) [TOOL [ <tool <|"), std::string("{"), std::string("[{")}) {
      expect(reading(format->name), text, told(text));
    }
    // A mark with nothing of the kind behind it, and one that is cut short.
    for (const std::string_view marker : format->markers) {
      if (format->name == "kimi") continue;  // its marks are never text
      for (const char* behind : {" no", "", "\n\n", "{]"}) {
        const std::string text = "a " + std::string(marker) + behind;
        const Told found = read(reading(format->name), {text});
        expect(reading(format->name), text, found);
        EXPECT_TRUE(found.calls.empty()) << text;
        EXPECT_EQ(found.content, text);
      }
    }
  }
}

TEST(ToolParsers, KeepWhatThereIsOfACallThatWasCutShort) {
  expect(reading("hermes"), "<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"O",
         told("", {{"weather", "{\"city\": \"O"}}));
  expect(reading("hermes"), "<tool_call>{\"name\": \"wea", told("<tool_call>{\"name\": \"wea"));
  expect(reading("mistral"), "[TOOL_CALLS]weather[ARGS]{\"c", told("", {{"weather", "{\"c"}}));
  expect(reading("qwen3_xml"), "<tool_call><function=now>", told("", {{"now", ""}}));
}

TEST(ToolParsers, LeaveFurtherCallsOutWhereOneIsWanted) {
  AnswerReading one = reading("hermes");
  one.one_call = true;
  expect(one,
         "<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call><tool_call>{\"name\": \"now\", \"arguments\": "
         "{}}</tool_call>",
         told("", {{"now", "{}"}}));
}

TEST(Reasoning, IsToldApartFromTheAnswer) {
  AnswerReading how;
  how.reasoning = find_reasoning_format("think");
  const auto thought = [](std::string reasoning, std::string content) {
    return Told{std::move(reasoning), std::move(content), {}, {}};
  };
  expect(how, "\n<think>\nWell, a < b.\n</think>\n\nYes <think>.", thought("Well, a < b.", "Yes <think>."));
  expect(how, " No thoughts <think>x</think>", thought("", " No thoughts <think>x</think>"));
  expect(how, "<think>on and </thi", thought("on and </thi", ""));
  expect(how, "<thi", thought("", "<thi"));
  how.reasoning_open = true;
  expect(how, "inside</think>out", thought("inside", "out"));
  how.calls = find_tool_format("hermes");
  Told both = thought("I call", "");
  both.calls = {{"now", "{}"}};
  both.ids = {""};
  expect(how, "I call</think>\n<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>", both);
  EXPECT_TRUE(is_reasoning_open(*how.reasoning, "<|assistant|><think>\n"));
  EXPECT_FALSE(is_reasoning_open(*how.reasoning, "<|assistant|><think>\n\n</think>\n"));
}

TEST(PythonValues, BecomeJson) {
  for (const auto& [python, json] :
       std::vector<std::pair<std::string, std::string>>{{"'a\\n\"b\"'", R"("a\n\"b\"")"},
                                                        {"(1, 2.5,)", "[1,2.5]"},
                                                        {"None", "null"},
                                                        {"{1: [False], 'k': -3}", R"({"1":[false],"k":-3})"},
                                                        {"some name", R"("some name")"},
                                                        {"'open", R"("'open")"},
                                                        {"[1", R"("[1")"}})
    EXPECT_EQ(value_of_python(python).dump(), json);
}

// Which characters lead out of what is open: the next one of a closing tag, or quotes and brackets.
std::string towards_an_end(const std::string& text, bool is_xml) {
  const std::string close = "</parameter>";
  if (!is_xml) return "\"}]<>/w0";
  size_t known = close.size() - 1;
  while (!text.ends_with(close.substr(0, known))) --known;
  return close.substr(known, 1) + "<>/w0";
}

// What a grammar enforces is what the parser reads.
TEST(ToolFormats, EnforceTheirOwnWayOfWriting) {
  if (!has_grammars()) GTEST_SKIP() << "this build has no XGrammar";
  GrammarVocabulary letters;
  letters.tokens.emplace_back();
  for (int c = 1; c < 127; ++c) letters.tokens.emplace_back(1, static_cast<char>(c));
  letters.end_ids = {127};
  letters.tokens.emplace_back();
  const auto compiler = make_grammar_compiler(letters);
  std::vector<ToolShape> shapes;
  for (const Json& tool : tools().as_array())
    shapes.push_back({tool.at("function").at("name").as_string(), tool.at("function").at("parameters")});
  for (const ToolFormat* format : tool_formats()) {
    for (const bool many : {false, true}) {
      const Json spec(Json::Object{{"type", "structural_tag"}, {"format", format->structure(shapes, many)}});
      const auto grammar = compiler->compile({GrammarKind::kStructure, spec.dump(), {}});
      ASSERT_TRUE(grammar) << format->name << ": " << grammar.error().message;
      // A short way that leads out, by a greedy walk.
      const auto matcher = (*grammar)->matcher();
      std::string text;
      std::vector<uint32_t> mask(4);
      for (int step = 0; step < 400 && !matcher->is_terminated(); ++step) {
        matcher->fill_mask(mask);
        const auto allowed = [&mask](int32_t t) { return (mask[static_cast<size_t>(t) / 32] >> (t % 32) & 1) != 0; };
        int32_t next = 127;
        for (const char c :
             towards_an_end(text, format->structure(shapes, many).dump().find("_xml") != std::string::npos))
          if (!allowed(next)) next = c;
        for (int32_t t = 126; t > 32 && !allowed(next); --t) next = t;
        if (!allowed(next)) next = allowed('\n') ? '\n' : ' ';
        ASSERT_TRUE(matcher->accept(next)) << format->name << ": " << text;
        if (next != 127) text += static_cast<char>(next);
      }
      EXPECT_TRUE(matcher->is_terminated()) << format->name << ": " << text;
      const Told found = read(reading(format->name), {text});
      EXPECT_EQ(found.content, "") << format->name << ": " << text;
      ASSERT_GE(found.calls.size(), 1U) << format->name << ": " << text;
      for (const auto& [name, arguments] : found.calls)
        EXPECT_TRUE(parse_json(arguments, "arguments")) << format->name << ": " << text;
    }
  }
}

TEST(ToolFormats, AreToldFromTheChatTemplate) {
  for (const auto& [source, name] :
       std::vector<std::pair<std::string, std::string>>{{"{% if tools %}<tool_call>\\n{\"name\"", "hermes"},
                                                        {"{% if tools %}<tool_call>\\n<function=", "qwen3_xml"},
                                                        {"tools <|python_tag|>", "llama3_json"},
                                                        {"tools [TOOL_CALLS]", "mistral"},
                                                        {"tools <|tool_call|>", "granite"},
                                                        {"tools <TOOLCALL>", "nemotron"},
                                                        {"tools <|tool_calls_section_begin|>", "kimi"},
                                                        {"tools <tool_calls>", "minimax_m1"},
                                                        {"tools <minimax:tool_call>", "minimax_m2"},
                                                        {"tools <|tool_list_start|>", "lfm2"},
                                                        {"tools", "json"}})
    EXPECT_EQ(detect_tool_format(source)->name, name) << source;
  EXPECT_EQ(detect_tool_format("{{ messages }}"), nullptr);
  for (const ToolFormat* format : tool_formats()) EXPECT_EQ(find_tool_format(format->name), format);
  EXPECT_EQ(find_tool_format("none"), nullptr);
}

}  // namespace
}  // namespace coluber
