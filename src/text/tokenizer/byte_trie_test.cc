// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/byte_trie.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>

namespace coluber {
namespace {

using Found = std::vector<std::pair<size_t, int32_t>>;

Found prefixes(const ByteTrie& trie, std::string_view text) {
  Found found;
  trie.prefixes(text, [&](size_t length, int32_t value) { found.emplace_back(length, value); });
  return found;
}

// Few letters crowd the blocks, many fill them.
class ByteTries : public testing::TestWithParam<int> {};

TEST_P(ByteTries, FindTheKeysThatATextStartsWithAndNoOthers) {
  std::mt19937 random(7);
  const auto random_text = [&](size_t longest) {
    std::string text(1 + random() % longest, '\0');
    for (char& c : text) c = static_cast<char>(random() % static_cast<unsigned>(GetParam()));
    return text;
  };
  std::map<std::string, int32_t> values;
  for (int32_t i = 0; i < 20000; ++i) values[random_text(7)] = i;
  std::vector<std::pair<std::string_view, int32_t>> keys(values.begin(), values.end());
  std::shuffle(keys.begin(), keys.end(), random);
  ByteTrie trie;
  trie.build(std::move(keys));
  const auto expect = [&](const std::string& text) {
    Found expected;
    for (size_t length = 1; length <= text.size(); ++length)
      if (const auto at = values.find(text.substr(0, length)); at != values.end())
        expected.emplace_back(length, at->second);
    EXPECT_EQ(prefixes(trie, text), expected);
  };
  for (const auto& [key, value] : values) expect(key);
  for (int i = 0; i < 5000; ++i) expect(random_text(12));
}

INSTANTIATE_TEST_SUITE_P(Letters, ByteTries, testing::Values(2, 26, 256));

TEST(ByteTrie, OfEqualKeysTheLastCounts) {
  ByteTrie trie;
  trie.build({{"ab", 1}, {"a", 2}, {"ab", 3}});
  EXPECT_EQ(prefixes(trie, "abc"), (Found{{1, 2}, {2, 3}}));
}

TEST(ByteTrie, WithoutKeysFindsNothing) {
  ByteTrie trie;
  trie.build({});
  EXPECT_TRUE(prefixes(trie, "abc").empty());
}

}  // namespace
}  // namespace coluber
