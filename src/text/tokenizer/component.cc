// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/component.h"

#include "text/tokenizer/unicode.h"

namespace coluber {

Component::Component(const Json& json, std::string place) : json_(&json), place_(std::move(place)) {
  if (!json.is_object()) refuse(fmt::format("expected an object, found {}", json.type_name()));
}

void Component::refuse(const std::string& message) const {
  throw make_error(ErrorCode::kInvalidData, "{}: {}", place_, message);
}

void Component::unknown_kind(std::string_view what, std::initializer_list<std::string_view> known) const {
  std::string names;
  for (const std::string_view name : known) {
    if (!names.empty()) names += ", ";
    names += name;
  }
  throw make_error(ErrorCode::kUnsupported, "{}: the {} \"{}\" is not known; known are {}", place_, what, type(),
                   names);
}

const std::string& Component::type() const { return text("type"); }

bool Component::has(std::string_view key) const noexcept {
  const Json* value = json_->find(key);
  return value != nullptr && !value->is_null();
}

Component Component::child(std::string_view key) const {
  const Json* value = json_->find(key);
  if (value == nullptr)
    refuse(fmt::format("\"{}\" is missing; expected a tokenizer.json of the tokenizers library", key));
  return Component(*value, fmt::format("{}.{}", place_, key));
}

std::vector<Component> Component::children(std::string_view key) const {
  const Json* value = json_->find(key);
  if (value == nullptr || !value->is_array()) {
    refuse(fmt::format("\"{}\" should be an array, found {}", key, value == nullptr ? "nothing" : value->type_name()));
  }
  std::vector<Component> found;
  for (const Json& member : value->as_array()) {
    found.emplace_back(member, fmt::format("{}.{}[{}]", place_, key, found.size()));
  }
  return found;
}

bool Component::boolean(std::string_view key, std::optional<bool> fallback) const {
  const Json* value = json_->find(key);
  if ((value == nullptr || value->is_null()) && fallback) return *fallback;
  if (value == nullptr || !value->is_bool()) {
    refuse(fmt::format("\"{}\" should be true or false, found {}", key,
                       value == nullptr ? "nothing" : value->type_name()));
  }
  return value->as_bool();
}

const std::string& Component::text(std::string_view key) const {
  const Json* value = json_->find(key);
  if (value == nullptr || !value->is_string()) {
    refuse(fmt::format("\"{}\" should be a string, found {}", key, value == nullptr ? "nothing" : value->type_name()));
  }
  return value->as_string();
}

std::string Component::text_or(std::string_view key, std::string_view fallback) const {
  return has(key) ? text(key) : std::string(fallback);
}

int64_t Component::integer(std::string_view key, int64_t low, int64_t high, std::optional<int64_t> fallback) const {
  const Json* value = json_->find(key);
  if ((value == nullptr || value->is_null()) && fallback) return *fallback;
  if (value == nullptr || !value->is_int() || value->as_int() < low || value->as_int() > high) {
    refuse(fmt::format("\"{}\" should be an integer from {} to {}, found {}", key, low, high,
                       value == nullptr ? "nothing" : value->dump()));
  }
  return value->as_int();
}

std::string Component::character(std::string_view key, std::string_view fallback) const {
  if (!fallback.empty() && !has(key)) return std::string(fallback);
  const std::string& found = text(key);
  if (found.empty() || utf8_char_bytes(found[0]) != found.size() || !valid_utf8_prefix(found)) {
    refuse(fmt::format("\"{}\" should be one character, found \"{}\"", key, found));
  }
  return found;
}

}  // namespace coluber
