// SPDX-License-Identifier: Apache-2.0
#include "base/json.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/ascii.h"
#include "base/json_writer.h"
#include "base/mapped_file.h"

namespace coluber {
namespace {

std::string_view name_of_index(size_t index) {
  static constexpr std::string_view kNames[] = {"null", "boolean", "integer", "number", "string", "array", "object"};
  return kNames[index];
}

[[noreturn]] void throw_type(std::string_view expected, std::string_view found) {
  throw make_error(ErrorCode::kInvalidData, "expected a JSON value of type {}, found {}", expected, found);
}

// Keeps the last value of each key, at the place of its first: what Python's json does. Sorted by prefix rather than
// hashed: a hostile text cannot make it quadratic. Returns a key that was there twice.
std::optional<std::string> drop_duplicates(Json::Object& members) {
  struct Key {
    uint64_t prefix;
    uint32_t length, index;
  };
  std::vector<Key> keys(members.size());
  for (size_t i = 0; i < members.size(); ++i) {
    const std::string& name = members[i].first;
    unsigned char head[8] = {};
    std::memcpy(head, name.data(), std::min<size_t>(name.size(), sizeof head));
    uint64_t prefix = 0;
    std::memcpy(&prefix, head, sizeof prefix);
    keys[i] = {prefix, static_cast<uint32_t>(name.size()), static_cast<uint32_t>(i)};
  }
  const auto name = [&members](const Key& key) -> const std::string& { return members[key.index].first; };
  std::sort(keys.begin(), keys.end(), [&name](const Key& a, const Key& b) {
    if (a.prefix != b.prefix) return a.prefix < b.prefix;
    if (a.length != b.length) return a.length < b.length;
    const int order = a.length <= 8 ? 0 : name(a).compare(name(b));
    return order != 0 ? order < 0 : a.index < b.index;
  });
  std::vector<uint32_t> dropped;
  for (size_t begin = 0; begin < keys.size();) {
    size_t end = begin + 1;
    while (end < keys.size() && name(keys[end]) == name(keys[begin])) dropped.push_back(keys[end++].index);
    if (end - begin > 1) members[keys[begin].index].second = std::move(members[keys[end - 1].index].second);
    begin = end;
  }
  if (dropped.empty()) return std::nullopt;
  std::sort(dropped.begin(), dropped.end());
  std::string twice = members[dropped.front()].first;
  size_t kept = dropped.front(), next = 0;
  for (size_t i = kept; i < members.size(); ++i) {
    if (next < dropped.size() && dropped[next] == i) {
      ++next;
    } else {
      members[kept++] = std::move(members[i]);
    }
  }
  members.resize(kept);
  return twice;
}

std::optional<std::string> drop_duplicates_of_few(Json::Object& members) {
  std::optional<std::string> twice;
  for (size_t i = 1; i < members.size();) {
    size_t first = 0;
    while (first < i && members[first].first != members[i].first) ++first;
    if (first == i) {
      ++i;
      continue;
    }
    twice = members[first].first;
    members[first].second = std::move(members[i].second);
    members.erase(members.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return twice;
}

// Numbers of the text, by their place among all its numbers, that stand for a Python constant.
struct Constant {
  int64_t ordinal;
  double value;
};

// Builds the tree from the library's events. Open containers lie on a stack of their own, so no depth of the text
// becomes a depth of calls.
class Builder final : public nlohmann::json_sax<nlohmann::json> {
 public:
  Builder(const std::vector<Constant>& constants, bool refuse_duplicates)
      : constants_(constants), refuse_duplicates_(refuse_duplicates) {}

  bool null() override { return add(Json()); }
  bool boolean(bool value) override { return add(Json(value)); }
  bool number_integer(number_integer_t value) override { return add(number(Json(static_cast<int64_t>(value)))); }
  bool number_unsigned(number_unsigned_t value) override {
    if (value <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return add(number(Json(static_cast<int64_t>(value))));
    }
    return add(number(Json(static_cast<double>(value))));
  }
  bool number_float(number_float_t value, const string_t&) override { return add(number(Json(value))); }
  bool string(string_t& value) override { return add(Json(std::move(value))); }
  bool binary(binary_t&) override { return false; }

  bool start_object(size_t) override { return open(Json(Json::Object())); }
  bool start_array(size_t) override { return open(Json(Json::Array())); }
  bool key(string_t& value) override {
    open_.back().as_object().emplace_back(std::move(value), Json());
    return true;
  }
  bool end_object() override {
    Json::Object& members = open_.back().as_object();
    std::optional<std::string> twice =
        members.size() <= 16 ? drop_duplicates_of_few(members) : drop_duplicates(members);
    if (twice && refuse_duplicates_) {
      duplicate_ = std::move(twice);
      return false;
    }
    return close();
  }
  bool end_array() override { return close(); }

  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    error_position_ = position;
    error_ = error.what();
    return false;
  }

  Json& result() { return result_; }
  bool too_deep() const noexcept { return too_deep_; }
  const std::optional<std::string>& duplicate() const noexcept { return duplicate_; }
  size_t error_position() const noexcept { return error_position_; }
  const std::string& error() const noexcept { return error_; }

 private:
  Json number(Json value) {
    if (next_constant_ < constants_.size() && constants_[next_constant_].ordinal == num_numbers_) {
      value = Json(constants_[next_constant_++].value);
    }
    ++num_numbers_;
    return value;
  }
  bool add(Json value) {
    if (open_.empty()) {
      result_ = std::move(value);
    } else if (open_.back().is_array()) {
      open_.back().as_array().push_back(std::move(value));
    } else {
      open_.back().as_object().back().second = std::move(value);
    }
    return true;
  }
  bool open(Json container) {
    too_deep_ = open_.size() >= static_cast<size_t>(kMaxJsonDepth);
    if (!too_deep_) open_.push_back(std::move(container));
    return !too_deep_;
  }
  bool close() {
    Json done = std::move(open_.back());
    open_.pop_back();
    return add(std::move(done));
  }

  const std::vector<Constant>& constants_;
  bool refuse_duplicates_;
  size_t next_constant_ = 0;
  int64_t num_numbers_ = 0;
  std::vector<Json> open_;
  Json result_;
  bool too_deep_ = false;
  std::optional<std::string> duplicate_;
  size_t error_position_ = 0;
  std::string error_;
};

bool is_number_char(char c) { return ascii::is_digit(c) || c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E'; }
bool is_word_char(char c) { return is_number_char(c) || ascii::is_letter(c) || c == '_'; }

// Past the string that opens at `i`.
size_t skip_string(std::string_view text, size_t i) {
  for (++i; i < text.size() && text[i] != '"'; ++i) {
    if (text[i] == '\\') ++i;
  }
  return std::min(i + 1, text.size());
}

// Blanks Python's constants out with a number of the same length, and tells which numbers they were.
std::string replace_python_constants(std::string_view text, std::vector<Constant>& constants) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const Constant kSpellings[] = {{0, kInfinity}, {0, -kInfinity}, {0, std::numeric_limits<double>::quiet_NaN()}};
  constexpr std::string_view kNames[] = {"Infinity", "-Infinity", "NaN"};
  std::string result(text);
  int64_t num_numbers = 0;
  for (size_t i = 0; i < text.size();) {
    if (text[i] == '"') {
      i = skip_string(text, i);
      continue;
    }
    if (!is_word_char(text[i])) {
      ++i;
      continue;
    }
    size_t end = i;
    while (end < text.size() && is_word_char(text[end])) ++end;
    const std::string_view word = text.substr(i, end - i);
    const auto* name = std::find(std::begin(kNames), std::end(kNames), word);
    if (name != std::end(kNames)) {
      constants.push_back({num_numbers, kSpellings[name - kNames].value});
      result.replace(i, word.size(), word.size(), ' ');
      result[i] = '1';
    }
    if (name != std::end(kNames) || word[0] == '-' || (word[0] >= '0' && word[0] <= '9')) ++num_numbers;
    i = end;
  }
  return result;
}

std::string place(std::string_view text, size_t offset) {
  offset = std::min(offset, text.size());
  const std::string_view before = text.substr(0, offset);
  const size_t line_start = before.rfind('\n');
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const size_t column = line_start == std::string_view::npos ? offset + 1 : offset - line_start;
  return fmt::format("line {}, column {}", line, column);
}

// Offset of the bracket that opens one level too many.
size_t offset_of_excess(std::string_view text) {
  int depth = 0;
  for (size_t i = 0; i < text.size();) {
    if (text[i] == '"') {
      i = skip_string(text, i);
      continue;
    }
    if (text[i] == '[' || text[i] == '{') {
      if (++depth > kMaxJsonDepth) return i;
    }
    if (text[i] == ']' || text[i] == '}') --depth;
    ++i;
  }
  return text.size();
}

// The library's message without its own code and position.
std::string reason(const std::string& what) {
  const size_t column = what.find(", column ");
  const size_t colon = column == std::string::npos ? std::string::npos : what.find(": ", column);
  if (colon != std::string::npos) return what.substr(colon + 2);
  const size_t bracket = what.find("] ");
  return bracket == std::string::npos ? what : what.substr(bracket + 2);
}

}  // namespace

std::string_view Json::type_name() const noexcept { return name_of_index(value_.index()); }

bool Json::as_bool() const {
  if (!is_bool()) throw_type("boolean", type_name());
  return std::get<bool>(value_);
}
int64_t Json::as_int() const {
  if (!is_int()) throw_type("integer", type_name());
  return std::get<int64_t>(value_);
}
double Json::as_double() const {
  if (is_int()) return static_cast<double>(std::get<int64_t>(value_));
  if (!is_number()) throw_type("number", type_name());
  return std::get<double>(value_);
}
const std::string& Json::as_string() const {
  if (!is_string()) throw_type("string", type_name());
  return std::get<std::string>(value_);
}
const Json::Array& Json::as_array() const {
  if (!is_array()) throw_type("array", type_name());
  return std::get<Array>(value_);
}
const Json::Object& Json::as_object() const {
  if (!is_object()) throw_type("object", type_name());
  return std::get<Object>(value_);
}
Json::Array& Json::as_array() { return const_cast<Array&>(std::as_const(*this).as_array()); }
Json::Object& Json::as_object() { return const_cast<Object&>(std::as_const(*this).as_object()); }

const Json* Json::find(std::string_view key) const noexcept {
  const auto* members = std::get_if<Object>(&value_);
  if (members == nullptr) return nullptr;
  for (const Member& member : *members) {
    if (member.first == key) return &member.second;
  }
  return nullptr;
}

const Json& Json::at(std::string_view key) const {
  if (!is_object()) throw_type("object", type_name());
  if (const Json* value = find(key)) return *value;
  throw make_error(ErrorCode::kInvalidData, "the JSON object has no member \"{}\"", key);
}

Json& Json::set(std::string key, Json value) {
  if (is_null()) value_ = Object();
  if (const Json* found = find(key)) return const_cast<Json&>(*found) = std::move(value);
  return as_object().emplace_back(std::move(key), std::move(value)).second;
}

void Json::push_back(Json value) {
  if (is_null()) value_ = Array();
  as_array().push_back(std::move(value));
}

std::string Json::dump(int indent, bool ascii) const { return write_json(*this, indent, ascii); }

Result<Json> parse_json(std::string_view text, std::string_view source, const JsonParseOptions& options) {
  std::vector<Constant> constants;
  std::string replaced;
  std::string_view input = text;
  if (options.allow_python_constants &&
      (text.find("Infinity") != std::string_view::npos || text.find("NaN") != std::string_view::npos)) {
    replaced = replace_python_constants(text, constants);
    input = replaced;
  }
  Builder builder(constants, options.refuse_duplicate_keys);
  if (nlohmann::json::sax_parse(input.data(), input.data() + input.size(), &builder))
    return std::move(builder.result());
  if (builder.too_deep()) {
    return fail(ErrorCode::kInvalidData, "{}: JSON nested deeper than {} levels at {}", source, kMaxJsonDepth,
                place(text, offset_of_excess(text)));
  }
  if (builder.duplicate()) {
    return fail(ErrorCode::kInvalidData, "{}: the key {} occurs twice in one JSON object", source,
                Json(*builder.duplicate()).dump());
  }
  // The library counts the byte at fault as read.
  const size_t position = builder.error_position();
  return fail(ErrorCode::kInvalidData, "{}: not valid JSON at {}: {}", source,
              place(text, position > 0 ? position - 1 : 0), reason(builder.error()));
}

Json read_json_file(const std::string& path, const JsonParseOptions& options) {
  return value_or_throw(parse_json(read_text_file(path), path, options));
}

}  // namespace coluber
