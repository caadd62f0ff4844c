// SPDX-License-Identifier: Apache-2.0
//
// JSON values. json.cc is the only file that sees the JSON library. Objects keep their order; a key that occurs twice
// keeps its last value. Parsing refuses nesting deeper than kMaxJsonDepth and says where (line, column) a text is
// wrong.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.h"

namespace coluber {

inline constexpr int kMaxJsonDepth = 128;

class Json {
 public:
  using Array = std::vector<Json>;
  using Member = std::pair<std::string, Json>;
  using Object = std::vector<Member>;  // in order; `find` is linear on small objects

  Json() = default;  // null
  Json(std::nullptr_t) {}
  Json(bool value) : value_(value) {}
  Json(int value) : value_(static_cast<int64_t>(value)) {}
  Json(int64_t value) : value_(value) {}
  Json(double value) : value_(value) {}
  Json(std::string value) : value_(std::move(value)) {}
  Json(std::string_view value) : value_(std::string(value)) {}
  Json(const char* value) : value_(std::string(value)) {}
  Json(Array value) : value_(std::move(value)) {}
  Json(Object value) : value_(std::move(value)) {}

  bool is_null() const noexcept { return std::holds_alternative<std::monostate>(value_); }
  bool is_bool() const noexcept { return std::holds_alternative<bool>(value_); }
  bool is_int() const noexcept { return std::holds_alternative<int64_t>(value_); }
  bool is_number() const noexcept { return is_int() || std::holds_alternative<double>(value_); }
  bool is_string() const noexcept { return std::holds_alternative<std::string>(value_); }
  bool is_array() const noexcept { return std::holds_alternative<Array>(value_); }
  bool is_object() const noexcept { return std::holds_alternative<Object>(value_); }
  std::string_view type_name() const noexcept;  // "null", "boolean", "integer", "number", "string", "array", "object"

  // These throw Error(kInvalidData) naming both types where the value is of another type. An integer beyond int64 is a
  // double.
  bool as_bool() const;
  int64_t as_int() const;
  double as_double() const;  // also integers
  const std::string& as_string() const;
  const Array& as_array() const;
  const Object& as_object() const;
  Array& as_array();
  Object& as_object();

  const Json* find(std::string_view key) const noexcept;  // null where this is no object or has no such key
  const Json& at(std::string_view key) const;             // throws Error(kInvalidData) naming the key
  Json& set(std::string key, Json value);                 // appends or replaces; makes null an object
  void push_back(Json value);                             // makes null an array

  // Compact where indent < 0. Non-ASCII text is kept as UTF-8 unless `ascii`. Invalid UTF-8 is replaced by U+FFFD.
  // Doubles that are not finite are written as null.
  std::string dump(int indent = -1, bool ascii = false) const;
  bool operator==(const Json& other) const noexcept = default;

 private:
  std::variant<std::monostate, bool, int64_t, double, std::string, Array, Object> value_;
};

struct JsonParseOptions {
  bool allow_python_constants = false;  // bare Infinity, -Infinity and NaN, as Python's json writes them
  bool refuse_duplicate_keys = false;   // an error that names the key, instead of keeping the last value
};

// `source` names the text in messages ("models/x/config.json").
Result<Json> parse_json(std::string_view text, std::string_view source, const JsonParseOptions& options = {});
// Reads and parses; throws Error.
Json read_json_file(const std::string& path, const JsonParseOptions& options = {});

}  // namespace coluber
