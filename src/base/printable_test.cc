// SPDX-License-Identifier: Apache-2.0
#include "base/printable.h"

#include <gtest/gtest.h>

namespace coluber {
namespace {

using std::string_view_literals::operator""sv;

TEST(Printable, ControlCharactersAreSpelledOut) {
  EXPECT_EQ(printable("\x1b[31mred"), "\\x1b[31mred");
  EXPECT_EQ(printable("a\0b\x7f"sv), "a\\x00b\\x7f");
  EXPECT_EQ(printable("\xC2\x9B"
                      "31m"),
            "\\x9b31m");
}

TEST(Printable, LinesTabsAndLettersStay) {
  EXPECT_EQ(printable("two\nlines\tof Pr\xC3\xBC"
                      "fung \xC2\xA0"),
            "two\nlines\tof Pr\xC3\xBC"
            "fung \xC2\xA0");
  EXPECT_EQ(printable("\xC2"), "\xC2");
  EXPECT_EQ(printable(""), "");
}

}  // namespace
}  // namespace coluber
