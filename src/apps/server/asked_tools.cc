// SPDX-License-Identifier: Apache-2.0
#include "apps/server/asked_tools.h"

#include <algorithm>
#include <set>

#include "base/ascii.h"
#include "text/tool_parser/marked_json.h"

namespace coluber::server {
namespace {

constexpr size_t kMaxTools = 256;
constexpr size_t kMaxNameBytes = 128;

bool is_tool_name(const std::string& name) {
  return !name.empty() && name.size() <= kMaxNameBytes && std::all_of(name.begin(), name.end(), [](char c) {
    return ascii::is_digit(c) || ascii::is_letter(c) || c == '_' || c == '-' || c == '.';
  });
}

// Empty, or what the tool must have.
std::string problem_of(const Json& tool, std::set<std::string>& names) {
  const Json* type = tool.find("type");
  const Json* function = tool.find("function");
  if (type == nullptr || !(*type == Json("function")) || function == nullptr || !function->is_object())
    return "the form {\"type\": \"function\", \"function\": {\"name\", \"description\", \"parameters\"}}";
  const Json* name = function->find("name");
  if (name == nullptr || !name->is_string() || !is_tool_name(name->as_string()))
    return fmt::format("a name of letters, digits, '_', '-' and '.', at most {} of them", kMaxNameBytes);
  if (!names.insert(name->as_string()).second) return "a name of its own";
  const Json* parameters = function->find("parameters");
  if (parameters != nullptr && !parameters->is_null() && !parameters->is_object())
    return "'parameters', a JSON schema of an object";
  const Json* description = function->find("description");
  if (description != nullptr && !description->is_null() && !description->is_string()) return "a text as description";
  return {};
}

void read_choice(JsonFields& fields, AskedTools& asked) {
  const std::vector<std::string> names = tool_names(asked.tools);
  const Json* choice = fields.find("tool_choice", R"({"type": ["string", "object", "null"]})");
  asked.choice = names.empty() ? AskedTools::Choice::kNone : AskedTools::Choice::kAuto;
  if (choice == nullptr || *choice == Json("auto")) return;
  if (*choice == Json("none")) {
    asked.choice = AskedTools::Choice::kNone;
    return;
  }
  const Json* function = choice->find("function");
  const Json* name = function == nullptr ? nullptr : function->find("name");
  const bool named = name != nullptr && name->is_string();
  if (!named && !(*choice == Json("required")))
    return fields.wrong("tool_choice",
                        R"("none", "auto", "required" or {"type": "function", "function": {"name": ...}})", *choice);
  if (names.empty()) return fields.problem("tool_choice", "'tool_choice' asks for a call, and there are no 'tools'");
  asked.choice = named ? AskedTools::Choice::kNamed : AskedTools::Choice::kRequired;
  if (!named) return;
  asked.name = name->as_string();
  if (std::find(names.begin(), names.end(), asked.name) == names.end())
    fields.problem("tool_choice", "'tool_choice' names a tool that is not among 'tools'");
}

}  // namespace

AskedTools read_tools(JsonFields& fields) {
  AskedTools asked;
  const Json* tools = fields.find("tools", R"({"type": ["array", "null"], "items": {"type": "object"}})");
  if (tools != nullptr && (!tools->is_array() || tools->as_array().size() > kMaxTools)) {
    fields.wrong("tools", fmt::format("a list of at most {} tools", kMaxTools), *tools);
  } else if (tools != nullptr && !tools->as_array().empty()) {
    std::set<std::string> names;
    for (size_t i = 0; i < tools->as_array().size(); ++i)
      if (const std::string expected = problem_of(tools->as_array()[i], names); !expected.empty())
        fields.problem(fmt::format("tools[{}]", i), fmt::format("'tools[{}]' must have {}", i, expected));
    asked.tools = *tools;
  }
  read_choice(fields, asked);
  fields.boolean("parallel_tool_calls", &asked.many);
  if (!asked.may_call()) asked.tools = Json();
  return asked;
}

Json calls_structure(const AskedTools& asked, const ToolFormat& format, std::vector<GrammarSpec>* parts) {
  std::vector<ToolShape> shapes;
  for (const Json& tool : asked.tools.as_array()) {
    const Json& function = tool.at("function");
    const std::string& name = function.at("name").as_string();
    if (asked.choice == AskedTools::Choice::kNamed && name != asked.name) continue;
    const Json* parameters = function.find("parameters");
    const bool any = parameters == nullptr || parameters->is_null();
    Json schema = any ? Json(Json::Object{{"type", "object"}, {"properties", Json::Object{}}}) : *parameters;
    parts->push_back({GrammarKind::kJsonSchema, schema.dump()});
    shapes.push_back({name, std::move(schema)});
  }
  return format.structure(shapes, asked.many && asked.choice != AskedTools::Choice::kNamed);
}

}  // namespace coluber::server
