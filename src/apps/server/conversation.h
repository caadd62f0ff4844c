// SPDX-License-Identifier: Apache-2.0
//
// The conversation of a request, through the model's chat template: messages, tools, and what a client says of the
// rendering. Special tokens that somebody typed stay text unless that is asked for. Thread-safe.
#pragma once

#include "apps/server/asked_tools.h"
#include "coluber/engine.h"

namespace coluber::server {

// What the session holds that a request goes on from.
struct HeldSession {
  int64_t num_tokens = 0;
  int32_t last_token = -1;
  Json opening;  // messages that it was begun with, as long as no answer follows them; else null
};

struct RenderedConversation {
  ChatText text;
  AskedTools tools;
  bool special_in_messages = false;

  std::vector<int32_t> encode(const Engine& engine) const;
};

// Of one that goes on from a session, what follows there. Only the fields of the conversation are looked at.
Result<RenderedConversation> render_conversation(JsonFields& fields, const Engine& engine,
                                                 bool generation_prompt = true, const HeldSession* session = nullptr);
// The messages as templates want them, or what is wrong with them.
Result<Json> read_messages(JsonFields& fields);

}  // namespace coluber::server
