// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/arguments.h"

#include <gtest/gtest.h>

#include "coluber/error.h"

namespace coluber::cli {
namespace {

TEST(Arguments, AProgramOfItsOwnIsCalledByItsName) {
  for (const auto& [command, typed] : {std::pair{"run", "coluber run"}, {"coluber-x", "coluber-x"}}) {
    bool flag = false;
    Arguments arguments(command, "Does it.");
    arguments.flag("--flag", &flag, "a flag");
    EXPECT_EQ(arguments.help().find("Usage: " + std::string(typed) + " [OPTIONS]"), 0u) << arguments.help();
    try {
      ADD_FAILURE() << "was accepted: " << arguments.parse({"--flagg"});
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("See '" + std::string(typed) + " --help'"), std::string::npos)
          << error.what();
    }
  }
}

}  // namespace
}  // namespace coluber::cli
