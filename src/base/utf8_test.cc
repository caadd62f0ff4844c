// SPDX-License-Identifier: Apache-2.0
#include "base/utf8.h"

#include <gtest/gtest.h>

#include "base/printable.h"

namespace coluber {
namespace {

using std::string_view_literals::operator""sv;

TEST(Utf8, IsToldFromOtherBytes) {
  for (const std::string_view text : {""sv, "plain"sv, "\0"sv, "\xC2\x80"sv, "\xDF\xBF"sv, "\xE0\xA0\x80"sv,
                                      "\xED\x9F\xBF"sv, "\xEF\xBF\xBF"sv, "\xF0\x90\x80\x80"sv, "\xF4\x8F\xBF\xBF"sv})
    EXPECT_TRUE(is_valid_utf8(text)) << printable(text);
  for (const std::string_view text :
       {"\x80"sv, "\xC3"sv, "\xC1\xBF"sv, "\xE0\x9F\xBF"sv, "\xED\xA0\x80"sv, "a\xE2\x82"sv, "\xF0\x8F\xBF\xBF"sv,
        "\xF4\x90\x80\x80"sv, "\xF5\x80\x80\x80"sv, "\xC3z"sv, "\xFF\xFE"sv})
    EXPECT_FALSE(is_valid_utf8(text)) << text.size();
}

}  // namespace
}  // namespace coluber
