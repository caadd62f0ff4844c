// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/scanner.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "text/tokenizer/regex.h"
#include "text/tokenizer/unicode.h"

namespace coluber {
namespace {

constexpr const char* kCl100kHead = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|)";
constexpr const char* kCl100kTail = R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

std::string random_text(std::mt19937& random) {
  static const char* const kParts[] = {"'s",   "'LL",   "'\xC5\xBF", " ",        "  ",           "\n", "\r\n",    "\t",
                                       "word", "12345", "...",       "\xC2\xA0", "\xE2\x80\xA8", "x'", "\xC2\x85"};
  std::string text;
  for (size_t left = random() % 24; left > 0; --left) {
    if (random() % 2 == 0) {
      text += kParts[random() % std::size(kParts)];
      continue;
    }
    const uint32_t limits[] = {0x80, 0x250, 0x3000, 0xD800, 0x20000, 0x110000};
    uint32_t code_point = random() % limits[random() % std::size(limits)];
    if (code_point >= 0xD800 && code_point < 0xE000) code_point = ' ';
    append_utf8(text, code_point);
  }
  return text;
}

void expect_same_cuts(const std::string& pattern) {
  const auto scanner = find_scanner(pattern);
  ASSERT_TRUE(scanner) << pattern;
  const auto regex = Regex::compile(pattern);
  ASSERT_TRUE(regex) << regex.error().message;
  std::mt19937 random(11);
  for (int round = 0; round < 20000; ++round) {
    const std::string text = random_text(random);
    std::vector<Span> expected;
    ASSERT_TRUE((*regex)->find_all(text, expected));
    std::vector<Span> found;
    for (size_t at = 0; at < text.size();) {
      const size_t end = scanner->next(text, at);
      ASSERT_GT(end, at);
      found.push_back({at, end});
      at = end;
    }
    ASSERT_EQ(found, expected) << pattern << "\n" << ::testing::PrintToString(text);
  }
}

TEST(Scanner, CutsWhereTheExpressionsCut) {
  expect_same_cuts(std::string(kGpt2Pattern));
  for (const char* digits : {R"(\p{N})", R"(\p{N}{1,2})", R"(\p{N}{1,3})", R"(\p{N}+)"}) {
    expect_same_cuts(std::string(kCl100kHead) + digits + kCl100kTail);
  }
}

TEST(Scanner, KnowsOnlyItsExpressions) {
  EXPECT_FALSE(find_scanner(R"(\p{N})"));
  EXPECT_FALSE(find_scanner(std::string(kCl100kHead) + R"(\d)" + kCl100kTail));
  EXPECT_FALSE(find_scanner(""));
}

}  // namespace
}  // namespace coluber
