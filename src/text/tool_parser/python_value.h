// SPDX-License-Identifier: Apache-2.0
//
// Python's literals, as models write them for arguments of calls: where one ends, and which JSON value it is. Nothing
// is evaluated.
#pragma once

#include <string_view>

#include "base/json.h"

namespace coluber {

// Fed with a value's characters; knows whether a comma or a parenthesis now would be outside of it.
class PythonValueEnd {
 public:
  void take(char c);
  bool is_outside() const noexcept { return quote_ == 0 && depth_ == 0; }

 private:
  char quote_ = 0;
  bool escaped_ = false;
  int depth_ = 0;
};

// What is no literal is a text of itself.
Json value_of_python(std::string_view text);

}  // namespace coluber
