// SPDX-License-Identifier: Apache-2.0
//
// The header text of a session file: what an image says of itself, as JSON and back. Reading trusts nothing: every
// number is bounded before it is used. Private to session_file.cc and its tests; pure functions.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "base/json.h"
#include "cache/session_file.h"

namespace coluber {

inline constexpr std::array<std::string_view, 4> kSessionSections = {"tokens", "logits", "states", "attention"};

struct SessionSection {
  int64_t bytes = 0;
  Hash128 checksum;
};

struct SessionHeader {
  SessionImage image;  // without tokens, logits and bytes
  int64_t num_tokens = 0;
  Hash128 prefix;  // PrefixHash of the computed tokens
  std::array<SessionSection, kSessionSections.size()> sections;
};

Json session_header_json(const SessionHeader& header);
// Throws Error(kInvalidData) naming the field and what was expected of it.
SessionHeader parse_session_header(const Json& json);

}  // namespace coluber
