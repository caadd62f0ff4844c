// SPDX-License-Identifier: Apache-2.0
#include "text/chat_template/arguments.h"

#include <algorithm>

#include "text/chat_template/fault.h"
#include "text/chat_template/python.h"

namespace coluber::jinja {

Arguments::Arguments(std::string_view function, const Args& args, std::initializer_list<std::string_view> names,
                     size_t required)
    : function_(function), names_(names), slots_(names.size(), nullptr) {
  if (args.positional.size() > names_.size()) {
    raise_type("{}() takes at most {} arguments ({} given)", function, names_.size(), args.positional.size());
  }
  for (size_t i = 0; i < args.positional.size(); ++i) slots_[i] = &args.positional[i];
  for (const auto& [word, value] : args.keyword) {
    const auto found = std::find(names_.begin(), names_.end(), word);
    if (found == names_.end()) raise_type("{}() got an unexpected keyword argument '{}'", function, word);
    const Value*& slot = slots_[static_cast<size_t>(found - names_.begin())];
    if (slot != nullptr) raise_type("{}() got multiple values for argument '{}'", function, word);
    slot = &value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (slots_[i] == nullptr) raise_type("{}() missing required argument '{}'", function, names_[i]);
  }
}

bool Arguments::flag(size_t i, bool fallback) const { return given(i) ? truthy(at(i)) : fallback; }

int64_t Arguments::integer(size_t i, int64_t fallback) const {
  if (!given(i)) return fallback;
  if (at(i).is_undefined()) raise(FaultKind::kUndefined, "{}", at(i).undefined_message());
  if (!at(i).is_integral()) {
    raise_type("{}(): argument '{}' must be an integer, not '{}'", function_, names_[i], type_name(at(i)));
  }
  return at(i).integer();
}

const Text& Arguments::text(size_t i) const {
  if (at(i).is_undefined()) raise(FaultKind::kUndefined, "{}", at(i).undefined_message());
  if (!at(i).is_string()) {
    raise_type("{}(): argument '{}' must be a string, not '{}'", function_, names_[i], type_name(at(i)));
  }
  return at(i).text();
}

}  // namespace coluber::jinja
