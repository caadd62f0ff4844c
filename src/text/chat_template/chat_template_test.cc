// SPDX-License-Identifier: Apache-2.0
#include "text/chat_template/chat_template.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace coluber {
namespace {

namespace fs = std::filesystem;

std::string source_path(const std::string& relative) { return std::string(COLUBER_SOURCE_DIR) + "/" + relative; }

Result<std::string> render(const std::string& source, const Json& variables = Json(Json::Object{}),
                           TemplateFailure* failure = nullptr, const RenderOptions& options = {}) {
  const auto parsed = ChatTemplate::parse(source, "test", options.limits, failure);
  if (!parsed) return tl::unexpected<Failure>(parsed.error());
  return parsed->render(variables, options, failure);
}

// The conversation of a golden case with what apply_chat_template adds.
Json golden_variables(const Json& file, const Json& entry) {
  Json variables{Json::Object{}};
  for (const char* name : {"bos_token", "eos_token"}) variables.set(name, file.at(name));
  for (const Json& conversation : file.at("conversations").as_array()) {
    if (conversation.at("name").as_string() != entry.at("conversation").as_string()) continue;
    for (const char* name : {"messages", "tools"}) {
      if (const Json* value = conversation.find(name)) variables.set(name, *value);
    }
    if (const Json* kwargs = conversation.find("kwargs")) {
      for (const auto& [name, value] : kwargs->as_object()) variables.set(name, value);
    }
  }
  variables.set("add_generation_prompt", entry.at("add_generation_prompt"));
  return variables;
}

void check_golden(const std::string& path) {
  if (!fs::exists(path)) GTEST_SKIP() << path << " is not there";
  const Json file = read_json_file(path);
  RenderOptions options;
  options.now = value_or_throw(parse_clock(file.at("now").as_string()));
  int64_t checked = 0;
  for (const Json& entry : file.at("cases").as_array()) {
    const Json* source = file.at("templates").find(entry.at("template").as_string());
    if (source == nullptr) continue;
    TemplateFailure failure;
    const auto text = render(source->as_string(), golden_variables(file, entry), &failure, options);
    const std::string where = entry.at("template").as_string() + " / " + entry.at("conversation").as_string();
    ++checked;
    if (const Json* wanted = entry.find("text")) {
      ASSERT_TRUE(text.has_value()) << where << ": " << text.error().message;
      EXPECT_EQ(*text, wanted->as_string()) << where;
    } else {
      ASSERT_FALSE(text.has_value()) << where;
      if (entry.at("error_type").as_string() == "TemplateError") {
        EXPECT_EQ(failure.type, "TemplateError") << where;
        EXPECT_EQ(failure.message, entry.at("error").as_string()) << where;
      }
    }
  }
  EXPECT_GT(checked, 100);
}

TEST(ChatTemplate, RendersTheShippedConversationsAsTransformersDoes) {
  check_golden(source_path("tests/data/tokenizers/chat.json"));
}
TEST(ChatTemplate, RendersTheGoldenConversationsAsTransformersDoes) {
  check_golden(source_path("../shared/golden/tokenizers/chat.json"));
}

TEST(ChatTemplate, RendersEveryConstructAsJinja2Does) {
  const Json file = read_json_file(source_path("tests/data/chat_template/jinja_cases.json"));
  RenderOptions options;
  options.now = value_or_throw(parse_clock(file.at("now").as_string()));
  for (const Json& entry : file.at("cases").as_array()) {
    const std::string& source = entry.at("template").as_string();
    const auto text = render(source, file.at("variables"), nullptr, options);
    if (const Json* wanted = entry.find("text")) {
      ASSERT_TRUE(text.has_value()) << source << ": " << text.error().message;
      EXPECT_EQ(*text, wanted->as_string()) << source;
    } else {
      EXPECT_FALSE(text.has_value()) << source << " gave " << *text << ", expected " << entry.at("error").as_string();
    }
  }
  EXPECT_GT(file.at("cases").as_array().size(), 1000u);
}

TEST(ChatTemplate, NamesTheLineOfAFault) {
  TemplateFailure failure;
  const auto text =
      render("one\n{{ 1 }}\n{% if true %}\n{{ nothing.at.all }}{% endif %}", Json(Json::Object{}), &failure);
  ASSERT_FALSE(text.has_value());
  EXPECT_EQ(failure.line, 4);
  EXPECT_EQ(failure.type, "UndefinedError");
  EXPECT_EQ(text.error().message, "chat template test, line 4: 'nothing' is undefined");
  EXPECT_FALSE(render("a\n\n{% for x in %}", Json(Json::Object{}), &failure).has_value());
  EXPECT_EQ(failure.line, 3);
  EXPECT_EQ(failure.type, "TemplateSyntaxError");
}

TEST(ChatTemplate, GivesTheWordsOfRaiseException) {
  TemplateFailure failure;
  const auto text = render("\n{{ raise_exception('No system role') }}", Json(Json::Object{}), &failure);
  ASSERT_FALSE(text.has_value());
  EXPECT_EQ(failure.message, "No system role");
  EXPECT_EQ(failure.line, 2);
  EXPECT_TRUE(text.error().message.starts_with("No system role"));
}

std::string repeated(const std::string& text, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += text;
  return out;
}

TEST(ChatTemplate, EndsHostileTemplatesWithALimit) {
  const std::string sources[] = {
      "{{ " + repeated("(", 20000) + "1" + repeated(")", 20000) + " }}",
      "{{ " + repeated("[", 20000) + repeated("]", 20000) + " }}",
      "{{ " + repeated("not ", 20000) + "1 }}",
      "{{ 1" + repeated("+1", 20000) + " }}",
      "{{ x" + repeated("|upper", 20000) + " }}",
      repeated("{% if 1 %}", 20000),
      "{{ range(10 ** 9) }}",
      "{{ 'a' * 10 ** 12 }}",
      "{{ [1] * 10 ** 12 }}",
      "{{ 'a'.center(10 ** 15) }}",
      "{{ '%99999999999d' % 1 }}",
      "{{ 2 ** 100 }}",
      "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
      "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
      "{% set ns = namespace(x=[1, 2]) %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
      "{% set ns = namespace(x=[1]) %}{% for i in range(99999) %}{% set ns.x = [ns.x] %}{% endfor %}",
      "{% set a = namespace(x=[1]) %}{% set b = namespace(x=[1]) %}{% for i in range(60) %}{% set a.x = [a.x, a.x] %}"
      "{% set b.x = [b.x, b.x] %}{% endfor %}{{ a.x == b.x }}",
      "{% set ns = namespace() %}{% set ns.self = ns %}{{ ns }}",
      "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
      "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
  };
  RenderOptions options;
  options.limits.max_steps = 300'000;
  options.limits.max_memory_bytes = 32 << 20;
  options.limits.max_output_bytes = 4 << 20;
  for (const std::string& source : sources) {
    TemplateFailure failure;
    EXPECT_FALSE(render(source, Json(Json::Object{}), &failure, options).has_value()) << source.substr(0, 80);
    EXPECT_TRUE(failure.type == "LimitError" || failure.message.find("Too many") == 0)
        << source.substr(0, 80) << ": " << failure.message;
  }
  options.limits.max_source_bytes = 10;
  EXPECT_FALSE(ChatTemplate::parse("more than ten bytes", "test", options.limits).has_value());
}

TEST(ChatTemplate, RefusesWhatWouldChangeValuesOrLoadFiles) {
  for (const char* source : {"{% set l = [1] %}{{ l.append(2) }}", "{{ {}.update({}) }}", "{% include 'x' %}",
                             "{% extends 'x' %}", "{% import 'x' as x %}"}) {
    EXPECT_FALSE(render(source).has_value()) << source;
  }
}

TEST(ChatTemplate, RefusesTextThatIsNotUtf8) {
  TemplateFailure failure;
  EXPECT_FALSE(ChatTemplate::parse("a\n\xff", "test", {}, &failure).has_value());
  EXPECT_EQ(failure.line, 2);
  EXPECT_FALSE(render("{{ x }}", Json(Json::Object{{"x", std::string("\xc3")}})).has_value());
}

TEST(ChatTemplate, KeepsTheConversationsTextApartFromTheTemplates) {
  const auto parsed = ChatTemplate::parse(
      "<s>{{ bos_token }}{% for m in messages %}{{ '<u>' + m.content | trim ~ '</u>' }}{% endfor %}", "test");
  ASSERT_TRUE(parsed.has_value());
  const Json message(Json::Object{{"content", " <s> hi "}});
  const auto segments =
      parsed->render_segments(Json(Json::Object{{"bos_token", "<b>"}, {"messages", Json(Json::Array{message})}}));
  ASSERT_TRUE(segments.has_value());
  ASSERT_EQ(segments->size(), 3u);
  EXPECT_EQ((*segments)[0].text, "<s><b><u>");
  EXPECT_TRUE((*segments)[0].from_template);
  EXPECT_EQ((*segments)[1].text, "<s> hi");
  EXPECT_FALSE((*segments)[1].from_template);
  EXPECT_EQ((*segments)[2].text, "</u>");
  EXPECT_TRUE((*segments)[2].from_template);
}

TEST(ChatTemplate, ReadsClocks) {
  EXPECT_EQ(*parse_clock("1970-01-02T00:00:01"), 86401);
  EXPECT_EQ(*parse_clock("1970-01-01 01:00"), 3600);
  EXPECT_EQ(*parse_clock("1970-01-01"), 0);
  for (const char* wrong :
       {"", "today", "2024-13-01", "2024-02-30", "2024-01-01T25:00", "2024-01-01T10:00:00junk", "2024-01-01x"}) {
    EXPECT_FALSE(parse_clock(wrong).has_value()) << wrong;
  }
}

class ChatTemplateFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "chat_template_XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }
  void write(const std::string& name, const std::string& text) {
    fs::create_directories((fs::path(folder_) / name).parent_path());
    std::ofstream(fs::path(folder_) / name) << text;
  }
  std::string folder_;
};

TEST_F(ChatTemplateFolder, WithoutATemplateGivesNone) {
  EXPECT_FALSE(load_chat_template(folder_).has_value());
  write("tokenizer_config.json", "{\"eos_token\": \"</s>\"}");
  EXPECT_FALSE(load_chat_template(folder_).has_value());
}

TEST_F(ChatTemplateFolder, TakesSpecialTokensAsTextOrAddedToken) {
  write(
      "tokenizer_config.json",
      R"({"chat_template": "{{ bos_token }}{{ eos_token }}{{ pad_token }}", "bos_token": {"content": "<s>"}, "eos_token": "</s>"})");
  write("special_tokens_map.json", R"({"pad_token": {"content": "<p>"}, "eos_token": "other"})");
  const auto loaded = load_chat_template(folder_);
  ASSERT_TRUE(loaded.has_value());
  EXPECT_EQ(*loaded->render(Json(Json::Object{})), "<s></s><p>");
  EXPECT_EQ(*loaded->render(Json(Json::Object{{"bos_token", "mine"}})), "mine</s><p>");
}

TEST_F(ChatTemplateFolder, ChoosesTheToolTemplateWhereThereAreTools) {
  write(
      "tokenizer_config.json",
      R"({"chat_template": [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}, {"name": "rag", "template": "R"}]})");
  const auto loaded = load_chat_template(folder_);
  ASSERT_TRUE(loaded.has_value());
  EXPECT_EQ(*loaded->render(Json(Json::Object{})), "D");
  EXPECT_EQ(*loaded->render(Json(Json::Object{{"tools", Json(Json::Array{})}})), "T");
  EXPECT_EQ((*loaded->select("rag", false))->source(), "R");
  EXPECT_FALSE(loaded->select("nope", false).has_value());
}

TEST_F(ChatTemplateFolder, PrefersTheJinjaFile) {
  write("tokenizer_config.json", R"({"chat_template": "from config"})");
  write("chat_template.jinja", "from file");
  write("additional_chat_templates/tool_use.jinja", "tools");
  const auto loaded = load_chat_template(folder_);
  ASSERT_TRUE(loaded.has_value());
  EXPECT_EQ(*loaded->render(Json(Json::Object{})), "from file");
  EXPECT_EQ(*loaded->render(Json(Json::Object{{"tools", Json(Json::Array{})}})), "tools");
}

TEST_F(ChatTemplateFolder, RefusesBrokenTemplatesNamingTheFile) {
  write("chat_template.jinja", "{% if %}");
  try {
    load_chat_template(folder_);
    FAIL() << "expected an Error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidData);
    EXPECT_NE(std::string(error.what()).find("chat_template.jinja, line 1"), std::string::npos) << error.what();
  }
  write("chat_template.jinja", "ok");
  fs::remove(fs::path(folder_) / "chat_template.jinja");
  write("tokenizer_config.json", R"({"chat_template": 5})");
  EXPECT_THROW(load_chat_template(folder_), Error);
}

}  // namespace
}  // namespace coluber
