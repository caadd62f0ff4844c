// SPDX-License-Identifier: Apache-2.0
#include "apps/conformance/rules.h"

#include <fmt/core.h>

#include <limits>

namespace coluber::conformance {
namespace {

[[noreturn]] void wrong_type(std::string_view what, std::string_view expected, const Json& found) {
  throw CaseError(fmt::format("the case's '{}' is a value of type {}, expected {}", what, found.type_name(), expected));
}

}  // namespace

int64_t to_integer(const Json& value, std::string_view what) {
  if (!value.is_int()) wrong_type(what, "an integer", value);
  return value.as_int();
}

bool Input::has(std::string_view key) const {
  const Json* value = json_.find(key);
  return value != nullptr && !value->is_null();
}

const Json& Input::at(std::string_view key) const {
  const Json* value = json_.find(key);
  if (value == nullptr) throw CaseError(fmt::format("the case's input has no '{}'", key));
  return *value;
}

int64_t Input::integer(std::string_view key) const { return to_integer(at(key), key); }
int64_t Input::integer(std::string_view key, int64_t fallback) const { return has(key) ? integer(key) : fallback; }
std::optional<int64_t> Input::optional_integer(std::string_view key) const {
  return has(key) ? std::optional<int64_t>(integer(key)) : std::nullopt;
}

bool Input::boolean(std::string_view key, bool fallback) const {
  if (!has(key)) return fallback;
  if (!at(key).is_bool()) wrong_type(key, "true or false", at(key));
  return at(key).as_bool();
}

std::string Input::text(std::string_view key) const {
  if (!at(key).is_string()) wrong_type(key, "a string", at(key));
  return at(key).as_string();
}
std::string Input::text(std::string_view key, std::string_view fallback) const {
  return has(key) ? text(key) : std::string(fallback);
}

const Json::Array& Input::array(std::string_view key) const {
  if (!at(key).is_array()) wrong_type(key, "an array", at(key));
  return at(key).as_array();
}

std::vector<int64_t> Input::integers(std::string_view key) const {
  std::vector<int64_t> result;
  for (const Json& value : array(key)) result.push_back(to_integer(value, key));
  return result;
}

std::vector<int32_t> Input::ints(std::string_view key) const {
  std::vector<int32_t> result;
  for (const int64_t value : integers(key)) {
    if (value < std::numeric_limits<int32_t>::min() || value > std::numeric_limits<int32_t>::max())
      throw CaseError(fmt::format("the case's '{}' holds {}, expected 32-bit integers", key, value));
    result.push_back(static_cast<int32_t>(value));
  }
  return result;
}

std::vector<uint8_t> Input::flags(std::string_view key) const {
  std::vector<uint8_t> result;
  if (!has(key)) return result;
  for (const Json& value : array(key)) {
    if (!value.is_bool()) wrong_type(key, "an array of true and false", value);
    result.push_back(value.as_bool() ? 1 : 0);
  }
  return result;
}

Rule find_rule(std::string_view name) {
  for (const std::span<const NamedRule> rules : {layer_rules(), cache_rules(), metadata_rules()})
    for (const NamedRule& rule : rules)
      if (rule.name == name) return rule.run;
  return nullptr;
}

}  // namespace coluber::conformance
