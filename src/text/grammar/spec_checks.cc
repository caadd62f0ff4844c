// SPDX-License-Identifier: Apache-2.0
#include "text/grammar/spec_checks.h"

#include <algorithm>
#include <charconv>

#include "base/json.h"
#include "base/utf8.h"

namespace coluber {
namespace {

template <typename List>
bool has(const List& list, std::string_view name) {
  return std::find(std::begin(list), std::end(list), name) != std::end(list);
}

// Each decides alone what a value is: the compiler looks at nothing that stands beside it.
constexpr std::string_view kDecisive[] = {"$ref", "const", "enum", "anyOf", "oneOf", "allOf"};
constexpr std::string_view kNotes[] = {"$schema",     "$id",        "$anchor",     "$comment",  "$defs",
                                       "definitions", "title",      "description", "default",   "example",
                                       "examples",    "deprecated", "readOnly",    "writeOnly", "discriminator"};
constexpr std::string_view kPassedOver[] = {
    "not",          "if",          "then",     "else",        "dependentRequired", "dependentSchemas",
    "dependencies", "$dynamicRef", "contains", "minContains", "maxContains"};
// Whose members are schemas by name, or lists of schemas; all other members that are objects are schemas themselves.
constexpr std::string_view kSchemaMaps[] = {"properties", "patternProperties", "$defs", "definitions"};
constexpr std::string_view kValues[] = {"const", "enum", "default", "example", "examples", "required", "discriminator"};

class SchemaChecks {
 public:
  explicit SchemaChecks(const GrammarLimits& limits) : limits_(limits) {}

  Result<void> schema(const Json& schema, const std::string& place, int depth) {
    if (auto fine = count(schema, place, depth); !fine) return fine;
    if (!schema.is_object()) {
      if (schema.is_bool()) return {};
      return fail(ErrorCode::kInvalidArgument, "the schema at {} must be an object, true or false, found {}", place,
                  schema.type_name());
    }
    if (auto fine = keywords(schema, place); !fine) return fine;
    for (const auto& [key, value] : schema.as_object()) {
      const std::string here = place + "." + key.substr(0, kShownBytes);
      auto fine = has(kValues, key)       ? values(value, here, depth + 1)
                  : has(kSchemaMaps, key) ? members(value, here, depth + 1)
                                          : nested(value, here, depth);
      if (!fine) return fine;
    }
    return {};
  }

 private:
  static constexpr size_t kShownBytes = 40;

  Result<void> keywords(const Json& schema, const std::string& place) const {
    std::string_view decisive;
    for (const std::string_view key : kDecisive)
      if (decisive.empty() && schema.find(key) != nullptr) decisive = key;
    const bool may_say_type = decisive == "const" || decisive == "enum";
    for (const auto& [key, value] : schema.as_object()) {
      const bool unique = key == "uniqueItems" && !(value == Json(false));
      if (unique || has(kPassedOver, key))
        return fail(ErrorCode::kUnsupported, "the schema's keyword '{}' at {} is not supported; leave it out", key,
                    place);
      const bool beside = !decisive.empty() && key != decisive && !has(kNotes, key) && !(may_say_type && key == "type");
      if (beside)
        return fail(ErrorCode::kUnsupported,
                    "the schema at {} has '{}' beside '{}', which cannot be combined; write it inside of that one",
                    place, key.substr(0, kShownBytes), decisive);
    }
    return {};
  }

  Result<void> nested(const Json& value, const std::string& place, int depth) {
    if (value.is_object()) return schema(value, place, depth + 1);
    if (!value.is_array()) return count(value, place, depth);
    for (size_t i = 0; i < value.as_array().size(); ++i) {
      const Json& item = value.as_array()[i];
      const std::string here = fmt::format("{}[{}]", place, i);
      auto fine = item.is_object() ? schema(item, here, depth + 1) : count(item, here, depth + 1);
      if (!fine) return fine;
    }
    return {};
  }

  Result<void> members(const Json& map, const std::string& place, int depth) {
    if (!map.is_object())
      return fail(ErrorCode::kInvalidArgument, "the schema's {} must be an object of schemas, found {}", place,
                  map.type_name());
    for (const auto& [key, value] : map.as_object())
      if (auto fine = schema(value, place + "." + key.substr(0, kShownBytes), depth); !fine) return fine;
    return {};
  }

  Result<void> values(const Json& value, const std::string& place, int depth) {
    if (auto fine = count(value, place, depth); !fine) return fine;
    if (value.is_array())
      for (const Json& item : value.as_array())
        if (auto fine = values(item, place, depth + 1); !fine) return fine;
    if (value.is_object())
      for (const auto& [key, item] : value.as_object())
        if (auto fine = values(item, place, depth + 1); !fine) return fine;
    return {};
  }

  Result<void> count(const Json& value, const std::string& place, int depth) {
    if (depth > limits_.max_depth)
      return fail(ErrorCode::kInvalidArgument,
                  "the schema is nested deeper than {} at {}; make it flatter, or name parts "
                  "in '$defs' and refer to them",
                  limits_.max_depth, place.substr(0, 200));
    if (++entries_ > limits_.max_entries)
      return fail(ErrorCode::kInvalidArgument, "the schema has more than {} keys and values (at {}); make it smaller",
                  limits_.max_entries, place.substr(0, 200));
    (void)value;
    return {};
  }

  const GrammarLimits& limits_;
  int64_t entries_ = 0;
};

// Groups in one another and what the bounds of their repetitions multiply to, in expressions and in grammars (whose
// texts stand in quotes). A closed group passes on what is in it, so that `((a{9}){9}){9}` counts 729.
class GroupChecks {
 public:
  GroupChecks(const GrammarLimits& limits, bool quotes) : limits_(limits), quotes_(quotes) {}

  Result<void> check(std::string_view text) {
    std::vector<int64_t> most{1};  // by depth: the largest count inside the group that is open there
    int64_t last = 1;              // of what a repetition would repeat
    for (size_t i = 0; i < text.size(); ++i) {
      const char c = text[i];
      if (c == '\\') {
        ++i;
        last = 1;
      } else if (c == '[' || (quotes_ && c == '"')) {
        i = skip(text, i + 1, c == '[' ? ']' : '"');
        last = 1;
      } else if (c == '(') {
        most.push_back(1);
        last = 1;
      } else if (c == ')' && most.size() > 1) {
        last = most.back();
        most.pop_back();
      } else if (c == '{') {
        last = times(last, bound(text, i));
      } else if (c != '}' && c != '?' && c != '*' && c != '+' && c != ',' && (c < '0' || c > '9')) {
        last = 1;
      }
      most.back() = std::max(most.back(), last);
      if (static_cast<int>(most.size()) > limits_.max_depth + 1)
        return fail(ErrorCode::kInvalidArgument, "groups lie deeper than {} in one another at byte {}",
                    limits_.max_depth, i);
      if (last > limits_.max_repeats)
        return fail(ErrorCode::kInvalidArgument,
                    "repetitions in one another come to more than {} at byte {}; ask for fewer", limits_.max_repeats,
                    i);
    }
    return {};
  }

 private:
  static size_t skip(std::string_view text, size_t at, char end) {
    while (at < text.size() && text[at] != end) at += text[at] == '\\' ? 2 : 1;
    return at;
  }

  int64_t times(int64_t a, int64_t b) const {
    return a > limits_.max_repeats / std::max<int64_t>(b, 1) ? limits_.max_repeats + 1 : a * std::max<int64_t>(b, 1);
  }

  // The larger number of {n}, {n,} and {n,m}.
  int64_t bound(std::string_view text, size_t open) const {
    int64_t largest = 1;
    for (size_t at = open + 1; at < text.size() && text[at] != '}';) {
      int64_t number = 0;
      const auto [rest, error] = std::from_chars(text.data() + at, text.data() + text.size(), number);
      if (error == std::errc::result_out_of_range) number = limits_.max_repeats + 1;
      largest = std::max(largest, number);
      at = std::max(at + 1, static_cast<size_t>(rest - text.data()));
    }
    return largest;
  }

  const GrammarLimits& limits_;
  bool quotes_;
};

Result<void> check_choices(const GrammarSpec& spec, const GrammarLimits& limits) {
  if (spec.choices.empty() || std::ssize(spec.choices) > limits.max_choices)
    return fail(ErrorCode::kInvalidArgument, "expected 1 to {} choices, found {}", limits.max_choices,
                spec.choices.size());
  size_t bytes = 0;
  for (size_t i = 0; i < spec.choices.size(); ++i) {
    bytes += spec.choices[i].size();
    if (spec.choices[i].empty()) return fail(ErrorCode::kInvalidArgument, "choice {} is an empty text", i);
  }
  if (bytes > limits.max_bytes)
    return fail(ErrorCode::kInvalidArgument, "the choices have {} bytes, at most {} are allowed", bytes,
                limits.max_bytes);
  return {};
}

}  // namespace

Result<void> check_grammar_spec(const GrammarSpec& spec, const GrammarLimits& limits) {
  const size_t most = limits.max_bytes * (spec.kind == GrammarKind::kStructure ? 8 : 1);
  if (spec.text.size() > most)
    return fail(ErrorCode::kInvalidArgument, "it has {} bytes, at most {} are allowed", spec.text.size(), most);
  if (!is_valid_utf8(spec.text)) return fail(ErrorCode::kInvalidArgument, "it is not valid UTF-8");
  if (spec.text.find('\0') != std::string::npos) return fail(ErrorCode::kInvalidArgument, "it holds a NUL byte");
  switch (spec.kind) {
    case GrammarKind::kJsonSchema: {
      const Result<Json> schema = parse_json(spec.text, "the schema");
      if (!schema) return fail(ErrorCode::kInvalidArgument, "{}", schema.error().message);
      return SchemaChecks(limits).schema(*schema, "$", 0);
    }
    case GrammarKind::kRegex:
    case GrammarKind::kEbnf:
      if (spec.text.empty()) return fail(ErrorCode::kInvalidArgument, "it is empty");
      return GroupChecks(limits, spec.kind == GrammarKind::kEbnf).check(spec.text);
    case GrammarKind::kChoice:
      return check_choices(spec, limits);
    case GrammarKind::kStructure:
      for (const GrammarSpec& part : spec.parts)
        if (auto fine = check_grammar_spec(part, limits); !fine) return fine;
      return {};
    case GrammarKind::kJsonObject:
      return {};
  }
  return {};
}

}  // namespace coluber
