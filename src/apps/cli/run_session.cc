// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/run_session.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "apps/cli/cli.h"
#include "apps/cli/next_turn.h"
#include "base/error.h"
#include "base/json.h"
#include "base/mapped_file.h"

namespace coluber::cli {
namespace {

// Before minutes are spent on an answer that cannot be kept.
void check_writable(const std::string& path, const std::string& session) {
  check_path(path);
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  const std::string name = folder.empty() ? "." : folder.string();
  if (access(name.c_str(), W_OK | X_OK) == 0) return;
  throw make_error(ErrorCode::kIo, "{} cannot be saved: '{}' is no folder that may be written to; name another",
                   session, name);
}

}  // namespace

RunSession::RunSession(Engine& engine, std::string path, std::string name)
    : engine_(engine), path_(std::move(path)), name_(std::move(name)), session_(engine.open_session()) {
  check_writable(path_, name_);
  if (!file_exists(path_)) return;
  session_->load(path_);
  restored_tokens_ = std::ssize(session_->tokens());
}

std::vector<int32_t> RunSession::next_text(const std::string& text) const { return engine_.encode(text, false); }

std::vector<int32_t> RunSession::next_turn(const std::string& text) const {
  const Json::Array turn{Json(Json::Object{{"role", "user"}, {"content", text}})};
  std::vector<int32_t> ids = engine_.encode_chat(cli::text_behind_answer(engine_, turn, true, {}, {}, name_));
  const std::span<const int32_t> pending = session_->pending(), held = session_->tokens();
  drop_repeated_end(ids, !pending.empty() ? pending.back() : held.empty() ? -1 : held.back(), engine_.eos_token_ids());
  return ids;
}

bool RunSession::read(const std::vector<int32_t>& ids,
                      const std::function<void(int64_t done, int64_t total)>& on_progress) {
  std::vector<int32_t> all(session_->pending().begin(), session_->pending().end());
  all.insert(all.end(), ids.begin(), ids.end());
  const int64_t total = std::ssize(all), step = engine_.config().scheduler.max_num_batched_tokens;
  const int64_t limit = engine_.config().max_model_len;
  if (num_tokens() + total > limit) {
    throw make_error(ErrorCode::kContextLength,
                     "{}: the session holds {} tokens, {} more are to be read and the context limit is {}; shorten the "
                     "prompt, or begin a new session",
                     name_, num_tokens(), total, limit);
  }
  const std::span<const int32_t> rest(all);
  for (int64_t done = 0; done < total;) {
    if (interrupted()) {
      session_->set_pending(rest.subspan(static_cast<size_t>(done)));
      return false;
    }
    const int64_t size = std::min(step, total - done);
    session_->extend(rest.subspan(static_cast<size_t>(done), static_cast<size_t>(size)));
    done += size;
    on_progress(done, total);
  }
  return true;
}

RequestOutput RunSession::answer(
    const SamplingParams& sampling,
    const std::function<bool(const TokenOutput& token, const std::string& text)>& on_token) {
  return session_->generate(sampling, on_token);
}

void RunSession::save() const {
  if (num_tokens() > 0) session_->save(path_);
}

}  // namespace coluber::cli
