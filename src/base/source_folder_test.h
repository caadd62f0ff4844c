// SPDX-License-Identifier: Apache-2.0
//
// The repository that a test reads its data from: the one that it was built in, or, for programs that were carried to
// another machine, the one that the environment variable COLUBER_SOURCE_DIR names.
#pragma once

#include <cstdlib>
#include <string>

namespace coluber {

inline std::string source_folder() {
  const char* const given = std::getenv("COLUBER_SOURCE_DIR");
  return given != nullptr && *given != '\0' ? given : COLUBER_SOURCE_DIR;
}

}  // namespace coluber
