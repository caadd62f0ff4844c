// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/conversation.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "base/json.h"

namespace coluber::cli {
namespace {

using Clock = std::chrono::steady_clock;

// Each holds a copy of the recurrent states, some 100 MB for the largest models.
constexpr size_t kMaxCheckpoints = 4;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

template <typename A, typename B>
size_t common_prefix(const A& a, const B& b) {
  const auto [at, other] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  return static_cast<size_t>(at - a.begin());
}

}  // namespace

Conversation::Conversation(Engine& engine, SamplingParams sampling)
    : engine_(engine), sampling_(std::move(sampling)), session_(engine.open_session()) {
  if (!engine.has_tokenizer()) {
    throw Error(ErrorCode::kUnsupported,
                "chat: this model has no tokenizer (tokenizer.json or its like), so it cannot read text; "
                "'coluber run --prompt-ids' works on token ids");
  }
  if (!engine.has_chat_template()) {
    throw Error(ErrorCode::kUnsupported,
                "chat: this model has no chat template (in tokenizer_config.json or "
                "chat_template.jinja), so it was not made for conversations; 'coluber run --raw' goes on from a text");
  }
}

Conversation::~Conversation() = default;

void Conversation::reset() {
  messages_.clear();
  checkpoints_.clear();
  session_->reset();
  last_turn_ = {};
  turns_ = 0;
}

std::vector<int32_t> Conversation::render(bool add_generation_prompt) const {
  Json messages{Json::Array{}};
  const auto add = [&messages](const std::string& role, const std::string& content) {
    messages.push_back(Json(Json::Object{{"role", role}, {"content", content}}));
  };
  if (!system_.empty()) add("system", system_);
  for (const Message& message : messages_) add(message.role, message.content);
  return engine_.encode_chat(engine_.render_chat(messages.dump(), add_generation_prompt));
}

void Conversation::rewind_to_prefix(const std::vector<int32_t>& ids, TurnStats& stats) {
  const std::span<const int32_t> held = session_->tokens();
  if (held.empty()) {
    checkpoints_.clear();  // of a state that is gone
    stats.why = "nothing was held yet";
    return;
  }
  const size_t same = common_prefix(held, ids);
  if (same == held.size()) {
    stats.why = "the tokens held are a prefix of the conversation: only the new part was computed";
    return;
  }
  const std::string differs =
      fmt::format("the conversation as rendered now differs from the {} tokens held at token {}", held.size(), same);
  while (!checkpoints_.empty()) {
    const TurnCheckpoint& last = checkpoints_.back();
    if (last.tokens.size() <= same) {
      session_->rollback(last.checkpoint);
      stats.why =
          fmt::format("{}: went back to the checkpoint of turn {} at token {}", differs, last.turn, last.tokens.size());
      return;
    }
    checkpoints_.pop_back();
  }
  session_->reset();
  stats.why = fmt::format("{}, and no checkpoint lies before it: computed from the start", differs);
}

void Conversation::feed(const std::vector<int32_t>& ids, size_t end,
                        const std::function<void(int64_t, int64_t)>& on_progress) {
  const size_t chunk = static_cast<size_t>(engine_.config().scheduler.max_num_batched_tokens);
  for (size_t at = session_->tokens().size(); at < end;) {
    on_progress(static_cast<int64_t>(at), static_cast<int64_t>(ids.size()));
    const size_t count = std::min(chunk, end - at);
    session_->extend(std::span(ids).subspan(at, count));
    at += count;
  }
}

FinishReason Conversation::generate(const std::function<bool(const std::string&)>& on_text, TurnStats& stats) {
  std::string streamed;
  const RequestOutput result = session_->generate(sampling_, [&](const TokenOutput&, const std::string& piece) {
    streamed += piece;
    return on_text(piece);
  });
  // Text that was held back while a stop string might have been starting comes only with the result.
  if (result.text.size() > streamed.size() && result.text.starts_with(streamed)) {
    on_text(result.text.substr(streamed.size()));
    streamed = result.text;
  }
  if (result.finish_reason == FinishReason::kError) throw Error(result.error_code, result.error);
  stats.generated_tokens = static_cast<int64_t>(result.tokens.size());
  messages_.push_back({"assistant", streamed});
  return result.finish_reason;
}

FinishReason Conversation::answer(const std::string& text, const std::function<bool(const std::string&)>& on_text,
                                  const std::function<void(int64_t, int64_t)>& on_progress) {
  messages_.push_back({"user", text});
  const size_t kept_messages = messages_.size() - 1;
  try {
    TurnStats stats;
    stats.turn = turns_ + 1;
    const auto start = Clock::now();
    const std::vector<int32_t> ids = render(true);
    if (ids.empty()) {
      throw Error(ErrorCode::kInvalidArgument,
                  "the chat template makes no text of this conversation, so there is nothing to answer");
    }
    rewind_to_prefix(ids, stats);
    stats.prompt_tokens = static_cast<int64_t>(ids.size());
    stats.reused_tokens = tokens_held();
    stats.computed_tokens = stats.prompt_tokens - stats.reused_tokens;

    // Before the generation prompt, which a template may write differently once the answer is there.
    const size_t boundary = common_prefix(ids, render(false));
    if (boundary > session_->tokens().size()) {
      feed(ids, boundary, on_progress);
      checkpoints_.push_back({stats.turn,
                              std::vector<int32_t>(ids.begin(), ids.begin() + static_cast<int64_t>(boundary)),
                              session_->checkpoint()});
      if (checkpoints_.size() > kMaxCheckpoints) checkpoints_.pop_front();
    }
    feed(ids, ids.size(), on_progress);
    stats.prefill_s = seconds_since(start);

    const auto decode_start = Clock::now();
    const FinishReason reason = generate(on_text, stats);
    stats.decode_s = seconds_since(decode_start);
    last_turn_ = stats;
    turns_ = stats.turn;
    total_reused_ += stats.reused_tokens;
    total_computed_ += stats.computed_tokens;
    return reason;
  } catch (...) {
    messages_.resize(kept_messages);
    throw;
  }
}

}  // namespace coluber::cli
