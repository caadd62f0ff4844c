// SPDX-License-Identifier: Apache-2.0
//
// The form of answers as flags of the command line say it. Compiles nothing.
#pragma once

#include <optional>
#include <string>

#include "apps/cli/arguments.h"
#include "text/grammar/asked_grammar.h"

namespace coluber::cli {

class FormFlags {
 public:
  void declare(Arguments& arguments);
  // After parsing; none without a flag. Throws Error for more than one, and for a file that cannot be read.
  std::optional<AskedGrammar> asked() const;

 private:
  std::optional<std::string> json_schema_, regex_, grammar_;
};

}  // namespace coluber::cli
