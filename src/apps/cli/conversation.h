// SPDX-License-Identifier: Apache-2.0
//
// A conversation on one Session whose recurrent state stays between turns. Every turn renders the whole conversation
// with the model's chat template; while the tokens held are a prefix of it, only the rest is computed. Else the session
// goes back to the checkpoint of the latest turn that is still a prefix (templates that strip text from earlier turns
// need this), else to the start. Knows no terminal: text goes out through a callback. Borrows the engine.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "coluber/session.h"

namespace coluber::cli {

struct TurnStats {
  int64_t turn = 0;           // 0: no turn yet
  int64_t prompt_tokens = 0;  // of the whole conversation as rendered
  int64_t reused_tokens = 0;
  int64_t computed_tokens = 0;
  int64_t generated_tokens = 0;
  double prefill_s = 0.0;
  double decode_s = 0.0;
  std::string why;  // why so many were computed
};

class Conversation {
 public:
  // Throws Error(kUnsupported) where the model has no tokenizer or no chat template.
  Conversation(Engine& engine, SamplingParams sampling);
  ~Conversation();

  void set_system(std::string text) { system_ = std::move(text); }
  const std::string& system() const noexcept { return system_; }
  void reset();

  // Answers `text`. `on_text` gets pieces as they come and returns false to stop; `on_progress` is called between
  // chunks of the prompt and may throw. Where anything throws, the user's message is taken back. The answer stays in
  // the history.
  FinishReason answer(const std::string& text, const std::function<bool(const std::string& piece)>& on_text,
                      const std::function<void(int64_t done, int64_t total)>& on_progress);

  int64_t tokens_held() const noexcept { return static_cast<int64_t>(session_->tokens().size()); }
  // No token fits in beyond the one that was sampled last.
  bool context_is_full() const noexcept { return tokens_held() + 1 >= engine_.config().max_model_len; }
  const TurnStats& last_turn() const noexcept { return last_turn_; }
  int64_t total_reused() const noexcept { return total_reused_; }
  int64_t total_computed() const noexcept { return total_computed_; }

 private:
  struct Message {
    std::string role;
    std::string content;
  };
  struct TurnCheckpoint {
    int64_t turn = 0;
    std::vector<int32_t> tokens;
    SessionCheckpoint checkpoint;
  };

  std::vector<int32_t> render(bool add_generation_prompt) const;
  // Brings the session to a prefix of `ids` and fills `stats` with how.
  void rewind_to_prefix(const std::vector<int32_t>& ids, TurnStats& stats);
  void feed(const std::vector<int32_t>& ids, size_t end, const std::function<void(int64_t, int64_t)>& on_progress);
  FinishReason generate(const std::function<bool(const std::string&)>& on_text, TurnStats& stats);

  Engine& engine_;
  SamplingParams sampling_;
  std::unique_ptr<Session> session_;
  std::string system_;
  std::vector<Message> messages_;
  std::deque<TurnCheckpoint> checkpoints_;  // oldest first
  TurnStats last_turn_;
  int64_t turns_ = 0;
  int64_t total_reused_ = 0;
  int64_t total_computed_ = 0;
};

}  // namespace coluber::cli
