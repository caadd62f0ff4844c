// SPDX-License-Identifier: Apache-2.0
//
// Binds a call's arguments to a function's parameter names as Python does, with Python's complaints. Refers to the Args
// it was made of, which must outlive it.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "text/chat_template/value.h"

namespace coluber::jinja {

class Arguments {
 public:
  // The first `required` of `names` must be given.
  Arguments(std::string_view function, const Args& args, std::initializer_list<std::string_view> names,
            size_t required = 0);

  bool given(size_t i) const { return slots_[i] != nullptr; }
  bool given_not_none(size_t i) const { return slots_[i] != nullptr && !slots_[i]->is_none(); }
  const Value& at(size_t i) const { return *slots_[i]; }
  Value value(size_t i, Value fallback) const { return given(i) ? at(i) : std::move(fallback); }
  bool flag(size_t i, bool fallback) const;
  int64_t integer(size_t i, int64_t fallback) const;  // throws where it is none
  const Text& text(size_t i) const;                   // throws where it is no string

 private:
  std::string_view function_;
  std::vector<std::string_view> names_;
  std::vector<const Value*> slots_;
};

// For functions without parameters: throws where any argument is given.
inline void expect_no_arguments(std::string_view function, const Args& args) {
  [[maybe_unused]] const Arguments none(function, args, {});
}

}  // namespace coluber::jinja
