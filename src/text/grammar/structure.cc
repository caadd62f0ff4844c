// SPDX-License-Identifier: Apache-2.0
#include "text/grammar/structure.h"

namespace coluber {
namespace {

// The text as a quoted text of a grammar.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out + "\"";
}

Json object_schema() { return Json(Json::Object{{"type", "object"}, {"additionalProperties", true}}); }

}  // namespace

Json literal_format(std::string_view text) { return Json(Json::Object{{"type", "const_string"}, {"value", text}}); }

Json schema_format(const Json& schema, std::string_view style) {
  Json made(Json::Object{{"type", "json_schema"}, {"json_schema", schema}});
  if (!style.empty()) made.set("style", style);
  return made;
}

Json pattern_format(std::string_view expression) {
  return Json(Json::Object{{"type", "regex"}, {"pattern", expression}});
}

Json tag_format(std::string_view begin, Json content, std::string_view end) {
  return Json(Json::Object{{"type", "tag"}, {"begin", begin}, {"content", std::move(content)}, {"end", end}});
}

Json tags_format(Json::Array tags, std::string_view separator, bool many) {
  return Json(Json::Object{{"type", "tags_with_separator"},
                           {"tags", std::move(tags)},
                           {"separator", separator},
                           {"at_least_one", true},
                           {"stop_after_first", !many}});
}

Json sequence_format(Json::Array parts) {
  return Json(Json::Object{{"type", "sequence"}, {"elements", std::move(parts)}});
}

Json either_format(Json::Array parts) { return Json(Json::Object{{"type", "or"}, {"elements", std::move(parts)}}); }

Json thought_format(std::string_view begin, std::string_view end, bool is_begun) {
  Json text(Json::Object{{"type", "any_text"}, {"excludes", Json::Array{Json(end)}}});
  Json::Array parts;
  if (!is_begun) parts.push_back(literal_format(begin));
  parts.push_back(std::move(text));
  parts.push_back(literal_format(end));
  parts.push_back(pattern_format("\\n{0,2}"));
  Json all = sequence_format(std::move(parts));
  return is_begun ? all : Json(Json::Object{{"type", "optional"}, {"content", std::move(all)}});
}

Json form_format(const GrammarSpec& spec) {
  switch (spec.kind) {
    case GrammarKind::kJsonSchema:
      return schema_format(value_or_throw(parse_json(spec.text, "the schema")));
    case GrammarKind::kRegex:
      return pattern_format(spec.text);
    case GrammarKind::kEbnf:
      return Json(Json::Object{{"type", "grammar"}, {"grammar", spec.text}});
    case GrammarKind::kChoice:
      return Json(Json::Object{{"type", "grammar"}, {"grammar", rules_of_choices(spec.choices)}});
    case GrammarKind::kJsonObject:
    case GrammarKind::kStructure:
      break;
  }
  return schema_format(object_schema());
}

GrammarSpec structure_spec(const Json& format, std::vector<GrammarSpec> parts) {
  GrammarSpec spec{GrammarKind::kStructure, {}, {}, std::move(parts)};
  spec.text = Json(Json::Object{{"type", "structural_tag"}, {"format", format}}).dump();
  return spec;
}

std::string rules_of_choices(const std::vector<std::string>& choices) {
  std::string rules = "root ::= ";
  for (size_t i = 0; i < choices.size(); ++i) rules += (i == 0 ? "" : " | ") + quoted(choices[i]);
  return rules;
}

}  // namespace coluber
