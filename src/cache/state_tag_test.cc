// SPDX-License-Identifier: Apache-2.0
#include "cache/state_tag.h"

#include <gtest/gtest.h>

#include "coluber/error.h"

namespace coluber {
namespace {

PrefixHash prefix_of(std::vector<int32_t> tokens) {
  PrefixHash hash;
  hash.extend(tokens);
  return hash;
}

StateTag tag_of(const std::vector<int32_t>& tokens) {
  const PrefixHash prefix = prefix_of(tokens);
  StateTag tag;
  tag.model = hash_text("model");
  tag.layout_id = 7;
  tag.position = prefix.num_tokens();
  tag.prefix = prefix.value();
  return tag;
}

TEST(PrefixHash, ExtendingInAnyPiecesGivesTheSame) {
  const std::vector<int32_t> tokens{5, -1, 0, 2147483647, 5, 5};
  const PrefixHash whole = prefix_of(tokens);
  for (size_t cut = 0; cut <= tokens.size(); ++cut) {
    PrefixHash pieces;
    pieces.extend(std::span(tokens).first(cut));
    for (size_t i = cut; i < tokens.size(); ++i) pieces.extend(tokens[i]);
    EXPECT_EQ(pieces, whole) << cut;
  }
}

TEST(PrefixHash, OrderLengthAndTokensAllCount) {
  EXPECT_NE(prefix_of({1, 2}).value(), prefix_of({2, 1}).value());
  EXPECT_NE(prefix_of({0}).value(), prefix_of({}).value());
  EXPECT_NE(prefix_of({0}).value(), prefix_of({0, 0}).value());
  EXPECT_NE(prefix_of({1, 2, 3}).value(), prefix_of({1, 2, 4}).value());
}

// The chain is part of every saved state; a change of it must be a change of the file version.
TEST(PrefixHash, IsStableAcrossVersions) {
  EXPECT_EQ(prefix_of({1, 2, 3}).value().to_string(), "b45590dce00bed40f4da846a4dec542f");
}

TEST(StateTagTable, ReadsOnlyWhatWasWrittenAsExpected) {
  StateTagTable table("test", 4);
  EXPECT_THROW(table.expect(1, tag_of({})), Error);
  table.advance(1, tag_of({1, 2}));
  EXPECT_NO_THROW(table.expect(1, tag_of({1, 2})));
  EXPECT_THROW(table.expect(2, tag_of({1, 2})), Error);
  table.clear(1);
  EXPECT_THROW(table.expect(1, tag_of({1, 2})), Error);
}

TEST(StateTagTable, EveryFieldThatDiffersIsRefused) {
  StateTagTable table("test", 4);
  table.advance(1, tag_of({1, 2}));
  const auto refused = [&](auto change, const std::string& word) {
    StateTag expected = tag_of({1, 2});
    change(expected);
    try {
      table.expect(1, expected);
      return false;
    } catch (const Error& error) {
      return error.code() == ErrorCode::kInternal && std::string(error.what()).find(word) != std::string::npos;
    }
  };
  EXPECT_TRUE(refused([](StateTag& tag) { tag.position = 3; }, "after 2 tokens"));
  EXPECT_TRUE(refused([](StateTag& tag) { tag.prefix = prefix_of({1, 3}).value(); }, "prefix"));
  EXPECT_TRUE(refused([](StateTag& tag) { tag.model = hash_text("other"); }, "model"));
  EXPECT_TRUE(refused([](StateTag& tag) { tag.layout_id = 8; }, "layout"));
}

TEST(StateTagTable, ChecksumsAreComparedWhereBothSidesHaveOne) {
  StateTagTable table("test", 2);
  StateTag tag = tag_of({1});
  tag.checksum = hash_text("bytes");
  table.advance(1, tag);
  EXPECT_NO_THROW(table.expect(1, tag_of({1})));
  EXPECT_NO_THROW(table.expect(1, tag));
  tag.checksum = hash_text("other bytes");
  EXPECT_THROW(table.expect(1, tag), Error);
}

TEST(StateTagTable, SlotsOutsideAndTheNullSlotAreRefused) {
  StateTagTable table("test", 2);
  for (const int32_t slot : {-1, 0, 2}) {
    EXPECT_THROW(table.advance(slot, tag_of({1})), Error);
    EXPECT_THROW(table.expect(slot, tag_of({1})), Error);
    EXPECT_THROW(table.clear(slot), Error);
  }
}

}  // namespace
}  // namespace coluber
