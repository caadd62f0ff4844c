// SPDX-License-Identifier: Apache-2.0
//
// Declarative reading of a Hugging Face config.json into a struct: each field with its name, default and check, and all
// that is wrong with the file told in one message. Not a store of settings: it lives while one file is read. One
// thread.
//
//   ConfigFields fields(json, "models/x/config.json");
//   fields.alias("num_hidden_layers", {"n_layer"})
//       .required("num_hidden_layers", &c.num_hidden_layers, positive())
//       .optional("state_size", &c.state_size, 16, positive())
//       .optional("time_step_limit", &c.time_step_limit, {0.0, kInfinity}, at_least(0));
//   ConfigFields rope = fields.nested("rope_parameters");
//   rope.optional("rope_theta", &c.rope_theta, 10000.0, positive_finite());
//   fields.check([&] { return c.hidden_size % c.num_heads == 0; }, "num_heads must divide hidden_size");
//   fields.finish();
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/json.h"

namespace coluber {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

// What a value must be beyond its type. On a list it holds for each element.
struct FieldCheck {
  std::string expected;                        // ends "expected an integer ...": "above 0"; empty: anything
  std::function<bool(double)> number;          // null: any number
  std::function<bool(std::string_view)> text;  // null: any string
  double largest_int = 2147483648.0;           // 2^31: no product of a few sizes overflows
};

FieldCheck any();
FieldCheck unbounded();  // integers up to 2^53
FieldCheck positive();   // > 0; a floating field may be infinite
FieldCheck positive_finite();
FieldCheck finite();
FieldCheck at_least(double low);
FieldCheck between(double low, double high);  // both included
FieldCheck multiple_of(int64_t divisor);
FieldCheck divides(int64_t total, std::string_view what);  // total % value == 0; `what` names the total in the message
FieldCheck one_of(std::vector<std::string> choices);
FieldCheck one_of_numbers(std::vector<int64_t> choices);

// Types a field may have: int64_t, double, float, bool, std::string, and vectors of them (of bool excepted).
class ConfigFields {
 public:
  ConfigFields(const Json& json, std::string path);

  // The field may stand under these names too; the first name that is there wins, and two that disagree are a problem.
  // Say it before the field is read.
  ConfigFields& alias(std::string_view key, std::initializer_list<std::string_view> other_names);

  // A key that is missing or null is a problem. After any problem *out is 1 where it is a number, so that arithmetic on
  // it is harmless until `finish` throws.
  template <typename T>
  ConfigFields& required(std::string_view key, T* out, const FieldCheck& check = any()) {
    read(key, out, check, true);
    return *this;
  }
  // A key that is missing or null gives `fallback`, which is not checked.
  template <typename T>
  ConfigFields& optional(std::string_view key, T* out, std::type_identity_t<T> fallback,
                         const FieldCheck& check = any()) {
    *out = std::move(fallback);
    read(key, out, check, false);
    return *this;
  }
  // A key that is missing or null gives nothing.
  template <typename T>
  ConfigFields& optional(std::string_view key, std::optional<T>* out, const FieldCheck& check = any()) {
    T value{};
    out->reset();
    if (read(key, &value, check, false)) *out = std::move(value);
    return *this;
  }
  // A list of integers, or one integer for a list of one; missing or null leaves the list empty. "eos_token_id".
  ConfigFields& list_or_one(std::string_view key, std::vector<int64_t>* out, const FieldCheck& check = any());

  // The members of an object, sharing this one's list of problems. A missing or null key reads as an empty object.
  ConfigFields nested(std::string_view key);

  bool has(std::string_view key) const;          // there (under any alias) and not null
  const Json* find(std::string_view key) const;  // the same, as a value
  bool is_null(std::string_view key) const;      // there and null: some families mean another default by it

  // Not evaluated where there is a problem already: the values it would look at may be wrong.
  template <typename Condition>
    requires std::is_invocable_r_v<bool, Condition>
  ConfigFields& check(const Condition& condition, const std::string& message) {
    return ok() ? check(static_cast<bool>(condition()), message) : *this;
  }
  ConfigFields& check(bool condition, const std::string& message);
  ConfigFields& problem(std::string_view key, const std::string& message);  // reported as "key: message"
  bool ok() const noexcept;

  // Throws Error(kInvalidConfig) listing every problem, with the file and its model_type.
  void finish() const;

 private:
  struct Shared;
  ConfigFields(const Json& json, std::string prefix, std::shared_ptr<Shared> shared);
  // True where a value was there and was right.
  template <typename T>
  bool read(std::string_view key, T* out, const FieldCheck& check, bool required);
  const Json* lookup(std::string_view key, std::string* found_as) const;

  const Json* json_;  // null: reads as empty
  std::string prefix_;
  std::shared_ptr<Shared> shared_;
  std::map<std::string, std::vector<std::string>, std::less<>> aliases_;
};

// Text of a config.json as JSON; accepts Python's bare Infinity and NaN. Throws Error(kInvalidConfig) naming `path`.
Json parse_config(std::string_view text, const std::string& path);
Json read_config_file(const std::string& path);
// A number, or infinity as exporters tag it: {"__float__": "Infinity"}. None where it is neither.
std::optional<double> number_of(const Json& value);

}  // namespace coluber
