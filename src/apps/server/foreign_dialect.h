// SPDX-License-Identifier: Apache-2.0
//
// What the dialects of other APIs share: they are put into the words of /v1/chat/completions and back, so that fields,
// limits, tools and reasoning are the same everywhere.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/server/dialect.h"
#include "apps/server/json_fields.h"

namespace coluber::server {

// {"name": "their_name"} pairs; an error about the one is told as one about the other.
using FieldNames = std::vector<std::pair<std::string_view, std::string_view>>;
ApiError renamed(ApiError error, const FieldNames& names);

// Errors as clients of these APIs expect them.
Json anthropic_error(const ApiError& error);
Json ollama_error(const ApiError& error);

// What /v1/messages/count_tokens is asked, in the words of /v1/chat/completions. `list`, where not null, hears of every
// field.
Result<Json> anthropic_conversation(const Json& given, FieldList* list);

// A text, or a list of parts {"type": one of `types`, "text"}; false where it is neither.
bool read_text_parts(const Json& content, const std::vector<std::string_view>& types, std::string* text);

// "2026-01-31T12:00:00Z"
std::string iso_time(int64_t unix_seconds);

// One event of a stream, with its name.
std::string named_event(std::string_view name, const Json& data);

}  // namespace coluber::server
