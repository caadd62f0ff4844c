// SPDX-License-Identifier: Apache-2.0
//
// One sequence of the engine: its tokens, the cache it owns (one recurrent slot, attention pages) and how far it has
// been computed. Plain data; StateCache fills and frees the ids, the runner advances `num_computed_tokens`.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/state_tag.h"

namespace coluber {

struct Sequence {
  std::vector<int32_t> tokens;  // prompt, then what was sampled
  int64_t num_prompt_tokens = 0;
  int64_t num_computed_tokens = 0;  // tokens whose effect the state holds
  int32_t state_slot = 0;           // 0: none
  std::vector<int32_t> pages;       // attention pages, in order of position
  PrefixHash prefix_hash;           // of the computed tokens
  bool long_rope = false;           // its positions turn as those of a long sequence

  int64_t num_tokens() const noexcept { return static_cast<int64_t>(tokens.size()); }
  int64_t num_uncomputed() const noexcept { return num_tokens() - num_computed_tokens; }
  bool is_prefilling() const noexcept { return num_computed_tokens < num_prompt_tokens; }
};

}  // namespace coluber
