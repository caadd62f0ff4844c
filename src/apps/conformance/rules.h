// SPDX-License-Identifier: Apache-2.0
//
// The contract's rules as functions from the JSON of a case's input to the JSON of its result. A thin front: each calls
// the very function that the engine runs on, and none says a rule a second time. Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace coluber::conformance {

// The case itself is malformed: never counts as the refusal that a case may expect.
class CaseError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Typed access to a case's input. Throws CaseError naming the key, what was expected and what was found.
class Input {
 public:
  explicit Input(const Json& json) : json_(json) {}
  int64_t integer(std::string_view key) const;
  int64_t integer(std::string_view key, int64_t fallback) const;        // where absent or null
  std::optional<int64_t> optional_integer(std::string_view key) const;  // null or absent: none
  bool boolean(std::string_view key, bool fallback) const;
  std::string text(std::string_view key) const;
  std::string text(std::string_view key, std::string_view fallback) const;
  std::vector<int64_t> integers(std::string_view key) const;
  std::vector<int32_t> ints(std::string_view key) const;
  std::vector<uint8_t> flags(std::string_view key) const;  // empty where absent
  const Json::Array& array(std::string_view key) const;
  bool has(std::string_view key) const;

 private:
  const Json& at(std::string_view key) const;
  const Json& json_;
};
int64_t to_integer(const Json& value, std::string_view what);

using Rule = Json (*)(const Input& input);
struct NamedRule {
  std::string_view name;
  Rule run;
};
std::span<const NamedRule> layer_rules();     // rules_layer.cc
std::span<const NamedRule> cache_rules();     // rules_cache.cc
std::span<const NamedRule> metadata_rules();  // rules_metadata.cc
Rule find_rule(std::string_view name);        // null where unknown

template <typename Number>
Json to_json(const std::vector<Number>& values) {
  Json::Array array;
  array.reserve(values.size());
  for (const Number value : values) array.emplace_back(static_cast<int64_t>(value));
  return Json(std::move(array));
}

}  // namespace coluber::conformance
