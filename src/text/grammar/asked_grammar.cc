// SPDX-License-Identifier: Apache-2.0
#include "text/grammar/asked_grammar.h"

#include <algorithm>

namespace coluber {
namespace {

using Asked = Result<std::optional<AskedGrammar>>;

constexpr std::pair<std::string_view, std::string_view> kGuided[] = {
    {"guided_json", "json"}, {"guided_regex", "regex"}, {"guided_grammar", "grammar"}, {"guided_choice", "choice"}};

Asked wrong(const std::string& param, std::string message, ErrorCode code = ErrorCode::kInvalidArgument) {
  return tl::unexpected<Failure>(Failure{code, fmt::format("'{}' {}", param, message), param});
}

Asked schema_of(const Json& value, const std::string& param) {
  if (value.is_string()) return AskedGrammar{{GrammarKind::kJsonSchema, value.as_string(), {}}, param};
  if (value.is_object() || value.is_bool()) return AskedGrammar{{GrammarKind::kJsonSchema, value.dump(), {}}, param};
  return wrong(param, fmt::format("must be a JSON schema, found {}", value.type_name()));
}

Asked text_of(GrammarKind kind, const Json& value, const std::string& param) {
  if (value.is_string()) return AskedGrammar{{kind, value.as_string(), {}}, param};
  return wrong(param, fmt::format("must be a text, found {}", value.type_name()));
}

Asked choice_of(const Json& value, const std::string& param) {
  AskedGrammar asked{{GrammarKind::kChoice, {}, {}}, param};
  const bool texts = value.is_array() && std::all_of(value.as_array().begin(), value.as_array().end(),
                                                     [](const Json& item) { return item.is_string(); });
  if (!texts) return wrong(param, "must be a list of texts");
  for (const Json& item : value.as_array()) asked.spec.choices.push_back(item.as_string());
  return asked;
}

// The form that a field of this name asks for, in `structured_outputs` or behind "guided_".
Asked form_of(std::string_view name, const Json& value, const std::string& param) {
  if (name == "json") return schema_of(value, param);
  if (name == "regex") return text_of(GrammarKind::kRegex, value, param);
  if (name == "grammar") return text_of(GrammarKind::kEbnf, value, param);
  if (name == "choice") return choice_of(value, param);
  if (name != "json_object")
    return wrong(param, "is not supported; expected one of json, regex, grammar, choice, json_object",
                 ErrorCode::kUnsupported);
  if (!value.is_bool()) return wrong(param, "must be true or false");
  if (!value.as_bool()) return std::optional<AskedGrammar>();
  return AskedGrammar{{GrammarKind::kJsonObject, {}, {}}, param};
}

Asked response_format(const Json& format) {
  const std::string param = "response_format";
  const Json* type = format.find("type");
  const std::string name = type != nullptr && type->is_string() ? type->as_string() : std::string();
  if (name != "text" && name != "json_object" && name != "json_schema")
    return wrong(param,
                 R"(must be {"type": "text"}, {"type": "json_object"} or {"type": "json_schema", "json_schema": )"
                 R"({"name": ..., "schema": {...}}})");
  for (const auto& [key, value] : format.as_object())
    if (key != "type" && !(key == "json_schema" && name == "json_schema"))
      return wrong(param + "." + key.substr(0, 40), "is not a field of this format", ErrorCode::kUnsupported);
  if (name == "text") return std::optional<AskedGrammar>();
  if (name == "json_object") return AskedGrammar{{GrammarKind::kJsonObject, {}, {}}, param};
  const Json* described = format.find("json_schema");
  const std::string place = param + ".json_schema";
  if (described == nullptr || !described->is_object()) return wrong(place, "must be an object with a 'schema'");
  for (const auto& [key, value] : described->as_object())
    if (key != "name" && key != "description" && key != "strict" && key != "schema")
      return wrong(place + "." + key.substr(0, 40), "is not a field of this format", ErrorCode::kUnsupported);
  const Json* schema = described->find("schema");
  if (schema == nullptr || !schema->is_object()) return wrong(place + ".schema", "must be a JSON schema (an object)");
  return schema_of(*schema, place + ".schema");
}

Asked structured_outputs(const Json& outputs) {
  const std::string param = "structured_outputs";
  if (!outputs.is_object()) return wrong(param, fmt::format("must be an object, found {}", outputs.type_name()));
  std::optional<AskedGrammar> asked;
  for (const auto& [key, value] : outputs.as_object()) {
    if (value.is_null()) continue;
    Asked form = form_of(key, value, param + "." + key.substr(0, 40));
    if (!form) return form;
    if (asked && *form) return wrong(param, "asks for two forms at once; give one");
    if (*form) asked = std::move(*form);
  }
  return asked;
}

}  // namespace

Asked read_asked_grammar(const std::function<const Json*(std::string_view)>& find) {
  std::optional<AskedGrammar> asked;
  const auto take = [&](Asked found) -> Asked {
    if (!found) return found;
    if (asked && *found)
      return wrong((*found)->param, fmt::format("and '{}' are two forms for one answer; give one", asked->param));
    if (*found) asked = std::move(*found);
    return asked;
  };
  if (const Json* format = find("response_format"))
    if (auto taken = take(response_format(*format)); !taken) return taken;
  if (const Json* outputs = find("structured_outputs"))
    if (auto taken = take(structured_outputs(*outputs)); !taken) return taken;
  for (const auto& [field, name] : kGuided)
    if (const Json* value = find(field))
      if (auto taken = take(form_of(name, *value, std::string(field))); !taken) return taken;
  return asked;
}

}  // namespace coluber
