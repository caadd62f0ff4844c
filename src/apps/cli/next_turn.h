// SPDX-License-Identifier: Apache-2.0
//
// The next turn of a conversation whose answers are held as tokens, not as messages: what the chat template writes
// behind an answer. Plain functions; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "coluber/engine.h"

namespace coluber::cli {

// What the template writes behind an answer for these messages, a new answer's beginning included. `whose` stands in
// the message of Error(kUnsupported), where the template leaves earlier answers out.
ChatText text_behind_answer(const Engine& engine, const Json::Array& messages, bool add_generation_prompt = true,
                            const std::string& tools_json = {}, const std::string& kwargs_json = {},
                            const std::string& whose = {});
// An answer that came to its end has its end token already: then the text behind it begins without one.
void drop_repeated_end(std::vector<int32_t>& ids, int32_t last_token, std::span<const int32_t> eos_token_ids);

}  // namespace coluber::cli
