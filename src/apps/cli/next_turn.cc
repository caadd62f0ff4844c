// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/next_turn.h"

#include <algorithm>

#include "base/error.h"

namespace coluber::cli {
namespace {

Json message(const char* role, std::string_view content) {
  return Json(Json::Object{{"role", role}, {"content", content}});
}

}  // namespace

ChatText text_behind_answer(const Engine& engine, const Json::Array& messages, bool add_generation_prompt,
                            const std::string& tools_json, const std::string& kwargs_json, const std::string& whose) {
  // What the template writes behind an answer and around the next turn is what it writes behind this stand-in.
  constexpr std::string_view kAnswer = "colubersanswer";
  Json::Array all{message("user", "x"), message("assistant", kAnswer)};
  all.insert(all.end(), messages.begin(), messages.end());
  const ChatText rendered =
      engine.render_chat(Json(std::move(all)).dump(), add_generation_prompt, tools_json, kwargs_json);
  const size_t at = rendered.text.find(kAnswer);
  if (at == std::string::npos)
    throw make_error(ErrorCode::kUnsupported,
                     "{}this model's chat template leaves earlier answers out, so a turn cannot follow one; give the "
                     "text without the template (run: --raw; batch, /v1/completions: 'prompt')",
                     whose.empty() ? "" : whose + ": ");
  return rendered.behind(at + kAnswer.size());
}

void drop_repeated_end(std::vector<int32_t>& ids, int32_t last_token, std::span<const int32_t> eos_token_ids) {
  const bool repeats = !ids.empty() && ids.front() == last_token;
  if (repeats && std::find(eos_token_ids.begin(), eos_token_ids.end(), last_token) != eos_token_ids.end())
    ids.erase(ids.begin());
}

}  // namespace coluber::cli
