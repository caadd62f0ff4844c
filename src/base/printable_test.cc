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

TEST(Printable, Utf8IsToldFromOtherBytes) {
  for (const std::string_view text : {""sv, "plain"sv, "\0"sv, "\xC2\x80"sv, "\xDF\xBF"sv, "\xE0\xA0\x80"sv,
                                      "\xED\x9F\xBF"sv, "\xEF\xBF\xBF"sv, "\xF0\x90\x80\x80"sv, "\xF4\x8F\xBF\xBF"sv})
    EXPECT_TRUE(is_utf8(text)) << printable(text);
  for (const std::string_view text :
       {"\x80"sv, "\xC3"sv, "\xC1\xBF"sv, "\xE0\x9F\xBF"sv, "\xED\xA0\x80"sv, "a\xE2\x82"sv, "\xF0\x8F\xBF\xBF"sv,
        "\xF4\x90\x80\x80"sv, "\xF5\x80\x80\x80"sv, "\xC3z"sv, "\xFF\xFE"sv})
    EXPECT_FALSE(is_utf8(text)) << text.size();
}

}  // namespace
}  // namespace coluber
