// SPDX-License-Identifier: Apache-2.0
#include "apps/server/answer_blocks.h"

#include <utility>

namespace coluber::server {

void AnswerBlocks::begin(AnswerBlock block, Listener& listener) {
  end(listener);
  blocks_.push_back(std::move(block));
  open_ = true;
  listener.block_begins(blocks_.back(), blocks_.size() - 1);
}

void AnswerBlocks::end(Listener& listener) {
  if (open_) listener.block_ends(blocks_.back(), blocks_.size() - 1);
  open_ = false;
  call_ = -1;
}

void AnswerBlocks::grow(AnswerBlock::Kind kind, const Json* text, Listener& listener) {
  if (text == nullptr || !text->is_string() || text->as_string().empty()) return;
  if (!open_ || blocks_.back().kind != kind) begin({kind, {}, {}, {}}, listener);
  blocks_.back().text += text->as_string();
  listener.block_grows(blocks_.back(), blocks_.size() - 1, text->as_string());
}

void AnswerBlocks::take_call(const Json& call, int64_t place, Listener& listener) {
  const auto text_of = [](const Json* value) {
    return value != nullptr && value->is_string() ? value->as_string() : std::string();
  };
  const Json* index = call.find("index");
  const int64_t number = index != nullptr ? index->as_int() : place;
  const Json* function = call.find("function");
  if (number != call_) {
    const std::string name = function != nullptr ? text_of(function->find("name")) : std::string();
    begin({AnswerBlock::Kind::kCall, {}, text_of(call.find("id")), name}, listener);
    call_ = number;
  }
  if (function != nullptr) grow(AnswerBlock::Kind::kCall, function->find("arguments"), listener);
}

void AnswerBlocks::take(const Json& message, Listener& listener) {
  grow(AnswerBlock::Kind::kReasoning, message.find("reasoning_content"), listener);
  grow(AnswerBlock::Kind::kText, message.find("content"), listener);
  const Json* calls = message.find("tool_calls");
  if (calls == nullptr || !calls->is_array()) return;
  for (size_t i = 0; i < calls->as_array().size(); ++i)
    take_call(calls->as_array()[i], static_cast<int64_t>(i), listener);
}

}  // namespace coluber::server
