// SPDX-License-Identifier: Apache-2.0
#include "base/checksum.h"

#include <gtest/gtest.h>

#include <string>

namespace coluber {
namespace {

uint64_t sum_of(const std::string& text, size_t piece) {
  Checksum sum;
  for (size_t at = 0; at < text.size(); at += piece)
    sum.add(std::as_bytes(std::span(text).subspan(at, std::min(piece, text.size() - at))));
  return sum.value();
}

TEST(Checksum, DoesNotDependOnHowBytesAreCut) {
  std::string text;
  for (int i = 0; i < 5000; ++i) text += static_cast<char>(i * 31 % 251);
  const uint64_t whole = sum_of(text, text.size());
  for (const size_t piece : {size_t{1}, size_t{7}, size_t{256}, size_t{1024}}) EXPECT_EQ(sum_of(text, piece), whole);
}

TEST(Checksum, TellsOneChangedBit) {
  std::string text(300, 'x');
  const uint64_t before = sum_of(text, 300);
  text[150] = static_cast<char>(text[150] ^ 1);
  EXPECT_NE(sum_of(text, 300), before);
  EXPECT_NE(sum_of("", 1), before);
}

}  // namespace
}  // namespace coluber
