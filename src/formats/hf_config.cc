// SPDX-License-Identifier: Apache-2.0
#include "formats/hf_config.h"

#include <algorithm>
#include <cmath>

#include "base/mapped_file.h"

namespace coluber {
namespace {

constexpr double kLargestExactInt = 9007199254740992.0;  // 2^53

std::string number_text(double value) {
  return value == std::floor(value) && std::fabs(value) < kLargestExactInt
             ? fmt::format("{}", static_cast<int64_t>(value))
             : fmt::format("{}", value);
}

FieldCheck number_check(std::string expected, std::function<bool(double)> accepts) {
  FieldCheck check;
  check.expected = std::move(expected);
  check.number = std::move(accepts);
  return check;
}

// The value as it stands in the file, cut to what fits a message.
std::string shown(const Json& value) {
  if (value.is_number() && std::isnan(value.as_double())) return "NaN";
  if (value.is_number() && std::isinf(value.as_double())) return value.as_double() > 0 ? "Infinity" : "-Infinity";
  constexpr size_t kMost = 80;
  std::string text = value.dump();
  if (text.size() <= kMost) return text;
  size_t cut = kMost;
  while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xc0) == 0x80) --cut;  // not inside a character
  return text.substr(0, cut) + "...";
}

// What a type is called, and how a value of it is read; each returns an empty text or what was wrong.
template <typename T>
struct FieldType;

std::string expected_text(std::string_view noun, const FieldCheck& check) {
  return check.expected.empty() ? std::string(noun) : fmt::format("{} {}", noun, check.expected);
}

template <>
struct FieldType<int64_t> {
  static constexpr std::string_view kNoun = "an integer", kPlural = "integers";
  static bool parse(const Json& json, const FieldCheck& check, int64_t* out) {
    if (!json.is_number()) return false;
    const double value = json.as_double();
    if (value != std::floor(value) || std::fabs(value) > check.largest_int || (check.number && !check.number(value)))
      return false;
    *out = json.is_int() ? json.as_int() : static_cast<int64_t>(value);
    return true;
  }
};

template <>
struct FieldType<double> {
  static constexpr std::string_view kNoun = "a number", kPlural = "numbers";
  static bool parse(const Json& json, const FieldCheck& check, double* out) {
    const std::optional<double> value = number_of(json);
    if (!value || std::isnan(*value) || (check.number && !check.number(*value))) return false;
    *out = *value;
    return true;
  }
};

template <>
struct FieldType<float> {
  static constexpr std::string_view kNoun = "a number", kPlural = "numbers";
  static bool parse(const Json& json, const FieldCheck& check, float* out) {
    double value = 0;
    if (!FieldType<double>::parse(json, check, &value)) return false;
    *out = static_cast<float>(value);
    // What float32 cannot hold must not turn into an infinity, or into a zero that the check has just refused.
    return std::isinf(value) || (std::isfinite(*out) && (!check.number || check.number(static_cast<double>(*out))));
  }
};

template <>
struct FieldType<bool> {
  static constexpr std::string_view kNoun = "true or false", kPlural = "booleans";
  static bool parse(const Json& json, const FieldCheck&, bool* out) {
    if (!json.is_bool()) return false;
    *out = json.as_bool();
    return true;
  }
};

template <>
struct FieldType<std::string> {
  static constexpr std::string_view kNoun = "a string", kPlural = "strings";
  static bool parse(const Json& json, const FieldCheck& check, std::string* out) {
    if (!json.is_string() || (check.text && !check.text(json.as_string()))) return false;
    *out = json.as_string();
    return true;
  }
};

template <typename T>
std::string parse_field(const Json& json, const FieldCheck& check, T* out) {
  T value{};
  if (!FieldType<T>::parse(json, check, &value)) {
    return fmt::format("expected {}, found {}", expected_text(FieldType<T>::kNoun, check), shown(json));
  }
  *out = std::move(value);
  return {};
}

template <typename T>
std::string parse_field(const Json& json, const FieldCheck& check, std::vector<T>* out) {
  if (!json.is_array()) return fmt::format("expected a list of {}, found {}", FieldType<T>::kPlural, shown(json));
  std::vector<T> values;
  for (const Json& item : json.as_array()) {
    T value{};
    const std::string wrong = parse_field(item, check, &value);
    if (!wrong.empty()) return fmt::format("item {}: {}", values.size(), wrong);
    values.push_back(std::move(value));
  }
  *out = std::move(values);
  return {};
}

template <typename T>
struct IsVector : std::false_type {};
template <typename T>
struct IsVector<std::vector<T>> : std::true_type {};

template <typename T>
std::string expected_of(const FieldCheck& check) {
  if constexpr (IsVector<T>::value) {
    return fmt::format("a list of {}", FieldType<typename T::value_type>::kPlural);
  } else {
    return expected_text(FieldType<T>::kNoun, check);
  }
}

}  // namespace

FieldCheck any() { return {}; }
FieldCheck unbounded() {
  FieldCheck check;
  check.largest_int = kLargestExactInt;
  return check;
}
FieldCheck positive() {
  return number_check("above 0", [](double v) { return v > 0; });
}
FieldCheck positive_finite() {
  return number_check("above 0 and finite", [](double v) { return v > 0 && std::isfinite(v); });
}
FieldCheck finite() {
  return number_check("that is finite", [](double v) { return std::isfinite(v); });
}
FieldCheck at_least(double low) {
  return number_check(fmt::format("of at least {}", number_text(low)), [low](double v) { return v >= low; });
}
FieldCheck between(double low, double high) {
  return number_check(fmt::format("from {} to {}", number_text(low), number_text(high)),
                      [low, high](double v) { return v >= low && v <= high; });
}
FieldCheck multiple_of(int64_t divisor) {
  return number_check(fmt::format("above 0 that is a multiple of {}", divisor), [divisor](double v) {
    return v > 0 && divisor > 0 && std::fmod(v, static_cast<double>(divisor)) == 0;
  });
}
FieldCheck divides(int64_t total, std::string_view what) {
  return number_check(fmt::format("above 0 that divides {} ({})", what, total),
                      [total](double v) { return v > 0 && std::fmod(static_cast<double>(total), v) == 0; });
}
FieldCheck one_of(std::vector<std::string> choices) {
  FieldCheck check;
  for (const std::string& choice : choices) {
    check.expected += fmt::format("{}\"{}\"", check.expected.empty() ? "out of " : ", ", choice);
  }
  check.text = [choices = std::move(choices)](std::string_view v) {
    return std::find(choices.begin(), choices.end(), v) != choices.end();
  };
  return check;
}
FieldCheck one_of_numbers(std::vector<int64_t> choices) {
  std::string expected;
  for (const int64_t choice : choices) expected += fmt::format("{}{}", expected.empty() ? "out of " : ", ", choice);
  return number_check(std::move(expected), [choices = std::move(choices)](double v) {
    return std::any_of(choices.begin(), choices.end(),
                       [v](int64_t choice) { return static_cast<double>(choice) == v; });
  });
}

struct ConfigFields::Shared {
  std::string path;
  std::string model_type;
  std::vector<std::string> problems;
};

ConfigFields::ConfigFields(const Json& json, std::string path) : json_(&json), shared_(std::make_shared<Shared>()) {
  shared_->path = std::move(path);
  if (const Json* type = json.find("model_type"); type != nullptr && type->is_string())
    shared_->model_type = type->as_string();
  if (!json.is_object()) {
    shared_->problems.push_back(fmt::format("expected a JSON object, found {}", shown(json)));
    json_ = nullptr;
  }
}

ConfigFields::ConfigFields(const Json& json, std::string prefix, std::shared_ptr<Shared> shared)
    : json_(&json), prefix_(std::move(prefix)), shared_(std::move(shared)) {}

ConfigFields& ConfigFields::alias(std::string_view key, std::initializer_list<std::string_view> other_names) {
  std::vector<std::string>& names = aliases_[std::string(key)];
  names.insert(names.end(), other_names.begin(), other_names.end());
  return *this;
}

const Json* ConfigFields::lookup(std::string_view key, std::string* found_as) const {
  if (json_ == nullptr) return nullptr;
  const Json* found = nullptr;
  std::string found_name;
  const auto consider = [&](const std::string& name) {
    const Json* value = json_->find(name);
    if (value == nullptr || value->is_null()) return;
    if (found == nullptr) {
      found = value;
      found_name = name;
    } else if (found_as != nullptr && !(*found == *value)) {
      shared_->problems.push_back(fmt::format("{}{} is {}, but its other spelling {}{} is {}; remove one of them",
                                              prefix_, found_name, shown(*found), prefix_, name, shown(*value)));
    }
  };
  consider(std::string(key));
  if (const auto names = aliases_.find(key); names != aliases_.end()) {
    for (const std::string& name : names->second) consider(name);
  }
  if (found_as != nullptr) *found_as = found == nullptr ? std::string(key) : found_name;
  return found;
}

template <typename T>
bool ConfigFields::read(std::string_view key, T* out, const FieldCheck& check, bool required) {
  std::string name;
  const Json* value = lookup(key, &name);
  if (value == nullptr && !required) return false;
  const std::string wrong =
      value == nullptr ? fmt::format("missing; expected {}", expected_of<T>(check)) : parse_field(*value, check, out);
  if (wrong.empty()) return true;
  shared_->problems.push_back(fmt::format("{}{}: {}", prefix_, name, wrong));
  if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) *out = T{1};
  return false;
}

template bool ConfigFields::read(std::string_view, int64_t*, const FieldCheck&, bool);
template bool ConfigFields::read(std::string_view, double*, const FieldCheck&, bool);
template bool ConfigFields::read(std::string_view, float*, const FieldCheck&, bool);
template bool ConfigFields::read(std::string_view, bool*, const FieldCheck&, bool);
template bool ConfigFields::read(std::string_view, std::string*, const FieldCheck&, bool);
template bool ConfigFields::read(std::string_view, std::vector<int64_t>*, const FieldCheck&, bool);
template bool ConfigFields::read(std::string_view, std::vector<double>*, const FieldCheck&, bool);
template bool ConfigFields::read(std::string_view, std::vector<float>*, const FieldCheck&, bool);
template bool ConfigFields::read(std::string_view, std::vector<std::string>*, const FieldCheck&, bool);

ConfigFields& ConfigFields::list_or_one(std::string_view key, std::vector<int64_t>* out, const FieldCheck& check) {
  out->clear();
  const Json* value = lookup(key, nullptr);
  if (value == nullptr) return *this;
  if (value->is_array()) {
    read(key, out, check, false);
  } else if (int64_t one = 0; read(key, &one, check, false)) {
    out->push_back(one);
  }
  return *this;
}

ConfigFields ConfigFields::nested(std::string_view key) {
  static const Json empty{Json::Object()};
  std::string name;
  const Json* value = lookup(key, &name);
  const std::string path = prefix_ + name;
  if (value != nullptr && !value->is_object()) {
    shared_->problems.push_back(fmt::format("{}: expected an object, found {}", path, shown(*value)));
    value = nullptr;
  }
  return ConfigFields(value == nullptr ? empty : *value, path + ".", shared_);
}

bool ConfigFields::has(std::string_view key) const { return lookup(key, nullptr) != nullptr; }
const Json* ConfigFields::find(std::string_view key) const { return lookup(key, nullptr); }

bool ConfigFields::is_null(std::string_view key) const {
  const Json* value = json_ == nullptr ? nullptr : json_->find(key);
  return value != nullptr && value->is_null();
}

ConfigFields& ConfigFields::check(bool condition, const std::string& message) {
  if (condition) return *this;
  // The numbers of the fields that the message speaks of, as the file has them.
  std::string found;
  for (size_t at = 0; json_ != nullptr && at < message.size();) {
    const size_t begin = message.find_first_of("abcdefghijklmnopqrstuvwxyz", at);
    if (begin == std::string::npos) break;
    at = std::min(message.find_first_not_of("abcdefghijklmnopqrstuvwxyz_0123456789", begin), message.size());
    const std::string word = message.substr(begin, at - begin);
    const Json* value = json_->find(word);
    if (value != nullptr && value->is_number())
      found += fmt::format("{}{} is {}", found.empty() ? "; " : ", ", word, value->dump());
  }
  shared_->problems.push_back(message + found);
  return *this;
}

ConfigFields& ConfigFields::problem(std::string_view key, const std::string& message) {
  shared_->problems.push_back(fmt::format("{}{}: {}", prefix_, key, message));
  return *this;
}

bool ConfigFields::ok() const noexcept { return shared_->problems.empty(); }

void ConfigFields::finish() const {
  const std::vector<std::string>& problems = shared_->problems;
  if (problems.empty()) return;
  std::string message = shared_->path;
  if (!shared_->model_type.empty()) message += fmt::format(" (model_type {})", shown(Json(shared_->model_type)));
  message += problems.size() == 1 ? ": 1 problem:" : fmt::format(": {} problems:", problems.size());
  for (const std::string& problem : problems) message += "\n  - " + problem;
  throw Error(ErrorCode::kInvalidConfig, message);
}

Json parse_config(std::string_view text, const std::string& path) {
  Result<Json> json = parse_json(text, path, {.allow_python_constants = true});
  if (!json) throw Error(ErrorCode::kInvalidConfig, json.error().message);
  return std::move(*json);
}

Json read_config_file(const std::string& path) {
  constexpr size_t kMostBytes = size_t{64} << 20;
  return parse_config(read_text_file(path, kMostBytes), path);
}

std::optional<double> number_of(const Json& value) {
  if (value.is_number()) return value.as_double();
  if (!value.is_object() || value.as_object().size() != 1) return std::nullopt;
  const Json* tag = value.find("__float__");
  if (tag == nullptr || !tag->is_string()) return std::nullopt;
  if (tag->as_string() == "Infinity") return kInfinity;
  if (tag->as_string() == "-Infinity") return -kInfinity;
  if (tag->as_string() == "NaN") return std::numeric_limits<double>::quiet_NaN();
  return std::nullopt;
}

}  // namespace coluber
