// SPDX-License-Identifier: Apache-2.0
#include "apps/server/json_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace coluber::server {
namespace {

constexpr size_t kShownBytes = 40;

std::string shown(const Json& value) {
  if (value.is_array()) return fmt::format("a list of {}", value.as_array().size());
  if (value.is_object()) return fmt::format("an object of {} fields", value.as_object().size());
  if (value.is_string() && value.as_string().size() > kShownBytes)
    return fmt::format("a text of {} bytes", value.as_string().size());
  return value.dump(-1, true);
}

// JSON has one kind of number, and clients whose language has one too write 1 as 1.0.
std::optional<int64_t> whole_number(const Json& value) {
  constexpr double kMaxExact = 9007199254740992.0;  // 2^53: beyond it the digits that were sent are lost
  if (value.is_int()) return value.as_int();
  if (!value.is_number()) return std::nullopt;
  const double number = value.as_double();
  if (!(std::abs(number) <= kMaxExact) || std::trunc(number) != number) return std::nullopt;
  return static_cast<int64_t>(number);
}

// Whatever a field may hold, it may be null.
Json or_null(Json schema) {
  schema.set("type", Json::Array{schema.at("type"), Json("null")});
  return schema;
}

}  // namespace

// ---- the list --------------------------------------------------------------------------------------------------

void FieldList::add(Field field) {
  const auto is_it = [&](const Field& other) { return other.name == field.name; };
  if (std::none_of(fields_.begin(), fields_.end(), is_it)) fields_.push_back(std::move(field));
}

Json FieldList::schema(const FieldList* passed) const {
  Json properties = Json(Json::Object{});
  for (const Field& field : fields_) {
    Json schema = field.inner ? or_null(field.inner->schema(passed)) : field.schema;
    std::string text = field.changes_nothing ? "taken; changes nothing" : std::string();
    if (!field.refused.empty()) text = "not supported: " + field.refused;
    if (passed != nullptr && !field.passed_as.empty())
      for (const Field& other : passed->fields_)
        if (other.name == field.passed_as) {
          schema = other.schema;
          if (!other.refused.empty()) text = "not supported: " + other.refused;
        }
    if (!text.empty()) schema.set("description", text);
    properties.set(field.name, std::move(schema));
  }
  return Json(Json::Object{{"type", "object"}, {"properties", std::move(properties)}, {"additionalProperties", false}});
}

// ---- reading ---------------------------------------------------------------------------------------------------

void JsonFields::list(FieldList::Field field) {
  if (list_ != nullptr) list_->add(std::move(field));
}

const Json* JsonFields::look(std::string_view name) {
  known_.push_back(name);
  const Json* value = object_.find(name);
  return value == nullptr || value->is_null() ? nullptr : value;
}

const Json* JsonFields::find(std::string_view name, std::string_view schema) {
  if (list_ != nullptr) list({.name = std::string(name), .schema = value_or_throw(parse_json(schema, name))});
  return look(name);
}

void JsonFields::note(std::string_view name) {
  list({.name = std::string(name), .changes_nothing = true});
  look(name);
}

void JsonFields::pass_on(std::string_view name, Json& to, std::string_view new_name) {
  const std::string target(new_name.empty() ? name : new_name);
  list({.name = std::string(name), .passed_as = target});
  if (const Json* value = look(name); value != nullptr) to.set(target, *value);
}

void JsonFields::object(std::string_view name, const std::function<void(JsonFields& inner)>& read) {
  if (list_ != nullptr) {
    const Json empty(Json::Object{});
    const auto fields = std::make_shared<FieldList>();
    JsonFields inner(empty, fields.get());
    read(inner);
    list({.name = std::string(name), .inner = fields});
  }
  const Json* found = look(name);
  if (found == nullptr) return;
  if (!found->is_object()) return wrong(name, "an object", *found);
  JsonFields inner(*found);
  read(inner);
  if (const auto failure = inner.finish()) {
    const std::string whole = fmt::format("{}.{}", name, failure->param), quoted = fmt::format("'{}'", failure->param);
    std::string message = failure->message;
    if (const size_t at = message.find(quoted); at != std::string::npos)
      message.replace(at, quoted.size(), fmt::format("'{}'", whole));
    problem(whole, message, failure->code);
  }
}

bool JsonFields::has(std::string_view name) const {
  const Json* value = object_.find(name);
  return value != nullptr && !value->is_null();
}

void JsonFields::problem(std::string_view name, std::string message, ErrorCode code) {
  if (!failure_) failure_ = Failure{code, std::move(message), std::string(name)};
}

void JsonFields::wrong(std::string_view name, std::string_view expected, const Json& found) {
  problem(name, fmt::format("'{}' must be {}, found {}", name, expected, shown(found)));
}

bool JsonFields::integer(std::string_view name, int64_t low, int64_t high, int64_t* value) {
  list({.name = std::string(name),
        .schema = or_null(Json(Json::Object{{"type", "integer"}, {"minimum", low}, {"maximum", high}}))});
  const Json* found = look(name);
  if (found == nullptr) return false;
  const std::optional<int64_t> whole = whole_number(*found);
  if (!whole || *whole < low || *whole > high) {
    wrong(name, fmt::format("a whole number from {} to {}", low, high), *found);
    return false;
  }
  *value = *whole;
  return true;
}

bool JsonFields::number(std::string_view name, double low, double high, double* value) {
  list({.name = std::string(name),
        .schema = or_null(Json(Json::Object{{"type", "number"}, {"minimum", low}, {"maximum", high}}))});
  const Json* found = look(name);
  if (found == nullptr) return false;
  if (!found->is_number() || !(found->as_double() >= low && found->as_double() <= high)) {
    wrong(name, fmt::format("a number from {} to {}", low, high), *found);
    return false;
  }
  *value = found->as_double();
  return true;
}

bool JsonFields::boolean(std::string_view name, bool* value) {
  list({.name = std::string(name), .schema = or_null(Json(Json::Object{{"type", "boolean"}}))});
  const Json* found = look(name);
  if (found == nullptr) return false;
  if (!found->is_bool()) {
    wrong(name, "true or false", *found);
    return false;
  }
  *value = found->as_bool();
  return true;
}

bool JsonFields::text(std::string_view name, std::string* value, size_t max_bytes) {
  list({.name = std::string(name),
        .schema = or_null(Json(Json::Object{{"type", "string"}, {"maxLength", static_cast<int64_t>(max_bytes)}}))});
  const Json* found = look(name);
  if (found == nullptr) return false;
  if (!found->is_string() || found->as_string().size() > max_bytes) {
    wrong(name, fmt::format("a text of at most {} bytes", max_bytes), *found);
    return false;
  }
  *value = found->as_string();
  return true;
}

bool JsonFields::choice(std::string_view name, const std::vector<std::string_view>& choices, std::string* value) {
  Json::Array all(choices.begin(), choices.end());
  all.emplace_back();
  list({.name = std::string(name), .schema = Json(Json::Object{{"enum", std::move(all)}})});
  const Json* found = look(name);
  if (found == nullptr) return false;
  if (!found->is_string() || std::find(choices.begin(), choices.end(), found->as_string()) == choices.end()) {
    wrong(name, fmt::format("\"{}\"", fmt::join(choices, "\" or \"")), *found);
    return false;
  }
  *value = found->as_string();
  return true;
}

bool JsonFields::ids(std::string_view name, int64_t vocab_size, std::vector<int32_t>* value) {
  list({.name = std::string(name),
        .schema = or_null(Json(
            Json::Object{{"type", "array"},
                         {"items", Json::Object{{"type", "integer"}, {"minimum", 0}, {"maximum", vocab_size - 1}}}}))});
  const Json* found = look(name);
  if (found == nullptr) return false;
  if (!take_token_ids(*found, vocab_size, value)) {
    wrong(name, fmt::format("a list of token ids from 0 to {}", vocab_size - 1), *found);
    return false;
  }
  return true;
}

void JsonFields::refuse(std::string_view name, std::string_view why, const Json& neutral) {
  list({.name = std::string(name),
        .schema = Json(Json::Object{{"enum", neutral.is_null() ? Json::Array{Json()} : Json::Array{neutral, Json()}}}),
        .refused = std::string(why)});
  const Json* found = look(name);
  if (found == nullptr || (!neutral.is_null() && *found == neutral)) return;
  problem(name, fmt::format("'{}' is not supported: {}", name, why), ErrorCode::kUnsupported);
}

std::optional<Failure> JsonFields::finish() {
  for (const auto& [name, value] : object_.as_object()) {
    if (value.is_null() || std::find(known_.begin(), known_.end(), name) != known_.end()) continue;
    const std::string cut = name.substr(0, kShownBytes);
    problem(cut, fmt::format("there is no field '{}' here; docs/api.md lists the fields of each route", cut));
  }
  return failure_;
}

bool take_token_ids(const Json& list, int64_t vocab_size, std::vector<int32_t>* ids) {
  if (!list.is_array()) return false;
  std::vector<int32_t> taken;
  taken.reserve(list.as_array().size());
  for (const Json& item : list.as_array()) {
    if (!item.is_int() || item.as_int() < 0 || item.as_int() >= vocab_size) return false;
    taken.push_back(static_cast<int32_t>(item.as_int()));
  }
  *ids = std::move(taken);
  return true;
}

}  // namespace coluber::server
