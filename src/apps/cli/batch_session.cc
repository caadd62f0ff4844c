// SPDX-License-Identifier: Apache-2.0
//
// Lines of a batch that go on from a session file and are saved in it.
#include <algorithm>
#include <filesystem>
#include <unordered_set>

#include "apps/cli/batch_run.h"
#include "base/error.h"

namespace coluber::cli {

std::string BatchRun::file_of(const std::string& session) {
  if (session.empty()) return session;
  std::error_code failed;
  const std::filesystem::path file = std::filesystem::weakly_canonical(session, failed);
  return failed ? session : file.string();
}

std::vector<int32_t> BatchRun::session_ids(const RunSession& session, const BatchRequest& given) const {
  if (session.is_new() || !given.prompt_ids.empty()) return prompt_ids(given);
  if (given.prompt) return session.next_text(*given.prompt);
  // The file holds the conversation; the line gives its next turn.
  const Json::Array& messages = given.messages->as_array();
  const Json* role = messages.front().find("role");
  const Json* content = messages.front().find("content");
  const bool is_turn =
      messages.size() == 1 && role->as_string() == "user" && content != nullptr && content->is_string();
  if (!is_turn || !given.tools_json.empty() || !given.template_kwargs_json.empty())
    throw Error(ErrorCode::kInvalidArgument,
                "'session' holds a conversation already: give the next turn alone, as one message of role user with a "
                "text as its content, without 'tools' and 'chat_template_kwargs'");
  return session.next_turn(content->as_string());
}

bool BatchRun::open_session(Active& active) {
  if (no_room_at_ == counts_.done && !active_.empty()) return false;
  try {
    active.session = std::make_unique<RunSession>(engine_, active.request.session, "'session'");
    return true;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kResourceExhausted || active_.empty()) throw;
    no_room_at_ = counts_.done;
    return false;
  }
}

bool BatchRun::save_session(const Active& active) {
  if (!active.session || active.outputs.front().finish_reason == FinishReason::kError) return true;
  try {
    active.session->save();
    return true;
  } catch (const Error& error) {
    write_problem(active.request.id, active.line, error.code(), error.what());
    return false;
  }
}

void BatchRun::chain_sessions() {
  std::unordered_set<std::string> begun;
  std::erase_if(coming_, [&](const Waiting& waiting) {
    if (waiting.session.empty() || begun.insert(waiting.session).second) return false;
    later_turns_[waiting.session].push_back(waiting);
    return true;
  });
}

void BatchRun::end_session_line(const std::string& file) {
  const auto found = later_turns_.find(file);
  if (found == later_turns_.end()) return;
  const Waiting next = std::move(found->second.front());
  found->second.pop_front();
  if (found->second.empty()) later_turns_.erase(found);
  const auto place = std::upper_bound(coming_.begin() + static_cast<int64_t>(next_), coming_.end(), next,
                                      [](const Waiting& a, const Waiting& b) { return a.arrival_s < b.arrival_s; });
  coming_.insert(place, next);
}

}  // namespace coluber::cli
