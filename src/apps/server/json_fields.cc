// SPDX-License-Identifier: Apache-2.0
#include "apps/server/json_fields.h"

#include <algorithm>

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

}  // namespace

const Json* JsonFields::find(std::string_view name) {
  known_.push_back(name);
  const Json* value = object_.find(name);
  return value == nullptr || value->is_null() ? nullptr : value;
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
  const Json* found = find(name);
  if (found == nullptr) return false;
  if (!found->is_int() || found->as_int() < low || found->as_int() > high) {
    wrong(name, fmt::format("a whole number from {} to {}", low, high), *found);
    return false;
  }
  *value = found->as_int();
  return true;
}

bool JsonFields::number(std::string_view name, double low, double high, double* value) {
  const Json* found = find(name);
  if (found == nullptr) return false;
  if (!found->is_number() || !(found->as_double() >= low && found->as_double() <= high)) {
    wrong(name, fmt::format("a number from {} to {}", low, high), *found);
    return false;
  }
  *value = found->as_double();
  return true;
}

bool JsonFields::boolean(std::string_view name, bool* value) {
  const Json* found = find(name);
  if (found == nullptr) return false;
  if (!found->is_bool()) {
    wrong(name, "true or false", *found);
    return false;
  }
  *value = found->as_bool();
  return true;
}

bool JsonFields::text(std::string_view name, std::string* value, size_t max_bytes) {
  const Json* found = find(name);
  if (found == nullptr) return false;
  if (!found->is_string() || found->as_string().size() > max_bytes) {
    wrong(name, fmt::format("a text of at most {} bytes", max_bytes), *found);
    return false;
  }
  *value = found->as_string();
  return true;
}

bool JsonFields::ids(std::string_view name, int64_t vocab_size, std::vector<int32_t>* value) {
  const Json* found = find(name);
  if (found == nullptr) return false;
  if (!take_token_ids(*found, vocab_size, value)) {
    wrong(name, fmt::format("a list of token ids from 0 to {}", vocab_size - 1), *found);
    return false;
  }
  return true;
}

void JsonFields::refuse(std::string_view name, std::string_view why, const Json& neutral) {
  const Json* found = find(name);
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
