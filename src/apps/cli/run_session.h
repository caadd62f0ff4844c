// SPDX-License-Identifier: Apache-2.0
//
// `coluber run --session FILE`, and lines of `coluber batch` with a "session": a session that goes on from a file and
// is saved in it. Knows files, prompts and the session; what is generated goes out through a callback, or is a
// request's. Borrows the engine. Main thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "coluber/session.h"

namespace coluber::cli {

class RunSession {
 public:
  // Loads the file where it is there. Throws Error where it cannot be used here, or could not be written; messages name
  // the session as `name` does.
  RunSession(Engine& engine, std::string path, std::string name = "run: --session");

  bool is_new() const noexcept { return restored_tokens_ == 0; }
  int64_t restored_tokens() const noexcept { return restored_tokens_; }
  int64_t num_tokens() const noexcept { return std::ssize(session_->tokens()); }
  int64_t num_held() const noexcept { return num_tokens() + std::ssize(session_->pending()); }

  // The tokens of a text that goes on from what is held: as it is, or as the user's next turn of a conversation.
  // Throws Error(kUnsupported) where the chat template does not show how a turn follows an answer.
  std::vector<int32_t> next_text(const std::string& text) const;
  std::vector<int32_t> next_turn(const std::string& text) const;

  // Reads what is pending and `ids`, in steps; false where Ctrl-C came: the rest is pending then.
  bool read(const std::vector<int32_t>& ids, const std::function<void(int64_t done, int64_t total)>& on_progress);
  RequestOutput answer(const SamplingParams& sampling,
                       const std::function<bool(const TokenOutput& token, const std::string& text)>& on_token);
  // Nothing where nothing was read yet.
  void save() const;
  // For a request that goes on from it.
  const std::shared_ptr<Session>& session() const noexcept { return session_; }

 private:
  Engine& engine_;
  std::string path_;
  std::string name_;
  std::shared_ptr<Session> session_;
  int64_t restored_tokens_ = 0;
};

}  // namespace coluber::cli
