// SPDX-License-Identifier: Apache-2.0
//
// Lines of a batch that go on from a session file and are saved in it.
#include "apps/cli/batch_run.h"
#include "apps/cli/cli.h"
#include "base/error.h"

namespace coluber::cli {

std::vector<int32_t> BatchRun::session_ids(const RunSession& session, const BatchRequest& given) const {
  if (session.is_new() || !given.prompt_ids.empty()) return make_request(given).prompt_ids;
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

// False where Ctrl-C came: the file is as it was, and the line has no result.
bool BatchRun::answer_session(Active& active) {
  if (form_)
    throw make_error(ErrorCode::kInvalidArgument, "'session' does not go with {}: leave one out", form_->param);
  RunSession session(engine_, active.request.session, "'session'");
  const std::vector<int32_t> ids = session_ids(session, active.request);
  if (!session.read(ids, [this](int64_t, int64_t) { show_progress(); })) return false;
  const auto& limit = active.request.cancel_after_tokens;
  Output& output = active.outputs.front();
  active.last = session.answer(active.request.sampling, [&](const TokenOutput& token, const std::string&) {
    if (active.first_token_s < 0.0) active.first_token_s = now_s();
    output.tokens.push_back(token);
    show_progress();
    return !interrupted() && (!limit || std::ssize(output.tokens) < *limit);
  });
  if (interrupted()) return false;
  active.prompt_tokens = active.last.prompt_tokens;
  active.completion_tokens = active.last.completion_tokens;
  output.text = active.last.text;
  output.finish_reason = active.last.finish_reason;
  if (output.finish_reason == FinishReason::kAbort) ++counts_.cancelled;
  if (output.finish_reason != FinishReason::kError) session.save();
  return true;
}

void BatchRun::run_session(const Waiting& waiting) {
  Active active;
  active.request = parse_batch_line(input_.text(*waiting.line), defaults_, engine_.model_info().vocab_size).request;
  active.started_s = now_s();
  active.outputs.resize(1);
  try {
    if (!answer_session(active)) return;
  } catch (const Error& error) {
    write_problem(active.request.id, waiting.line->number, error.code(), error.what());
    return;
  }
  write_result(active);
}

}  // namespace coluber::cli
