// SPDX-License-Identifier: Apache-2.0
#include "apps/server/answer_blocks.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace coluber::server {
namespace {

// What it was told, in one line.
class Told : public AnswerBlocks::Listener {
 public:
  std::string text;

  void block_begins(const AnswerBlock& block, size_t index) override {
    text += fmt::format("[{}{}", index, kind(block));
    if (block.kind == AnswerBlock::Kind::kCall) text += fmt::format(" {} {}", block.call_id, block.name);
  }
  void block_grows(const AnswerBlock&, size_t, const std::string& by) override { text += "|" + by; }
  void block_ends(const AnswerBlock& block, size_t) override { text += "=" + block.text + "]"; }

 private:
  static char kind(const AnswerBlock& block) {
    if (block.kind == AnswerBlock::Kind::kText) return 't';
    return block.kind == AnswerBlock::Kind::kCall ? 'c' : 'r';
  }
};

std::string told_of(const std::vector<const char*>& deltas) {
  AnswerBlocks blocks;
  Told told;
  for (const char* delta : deltas) blocks.take(value_or_throw(parse_json(delta, "test")), told);
  blocks.end(told);
  return told.text;
}

TEST(AnswerBlocks, ReasoningTextAndCallsFollowEachOther) {
  EXPECT_EQ(told_of({R"({"role": "assistant", "content": ""})", R"({"reasoning_content": "So"})",
                     R"({"reasoning_content": "."})", R"({"content": "Hel"})", R"({"content": "lo"})",
                     R"({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": ""}}]})",
                     R"({"tool_calls": [{"index": 0, "function": {"arguments": "{\"x\""}}]})",
                     R"({"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]})",
                     R"({"tool_calls": [{"index": 1, "id": "b", "function": {"name": "g", "arguments": "{}"}}]})",
                     R"({"content": "!"})", R"({})"}),
            "[0r|So|.=So.][1t|Hel|lo=Hello][2c a f|{\"x\"|: 1}={\"x\": 1}][3c b g|{}={}][4t|!=!]");
}

TEST(AnswerBlocks, AWholeMessageIsOneDelta) {
  EXPECT_EQ(told_of({R"({"role": "assistant", "content": null, "tool_calls": [
                          {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}},
                          {"id": "b", "type": "function", "function": {"name": "f", "arguments": ""}}]})"}),
            "[0c a f|{}={}][1c b f=]");
  EXPECT_EQ(told_of({R"({"role": "assistant", "content": "Hello", "reasoning_content": null})"}), "[0t|Hello=Hello]");
  EXPECT_EQ(told_of({R"({"role": "assistant", "content": ""})"}), "");
}

}  // namespace
}  // namespace coluber::server
