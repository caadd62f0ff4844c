// SPDX-License-Identifier: Apache-2.0
//
// What the prefix cache says of a request: why states that an earlier request had computed could not be reused. Plain
// values.
#pragma once

#include <string_view>

namespace coluber {

// Why a prompt's states were not, or not all, found in the cache. A closed list.
enum class MissReason {
  kNone,                          // everything that can be reused was
  kDisabled,                      // prefix caching is off
  kTooShort,                      // the prompt is too short for a stored state to lie before its last token
  kNoCommonPrefix,                // no earlier request began like this
  kDifferentAdapterOrSalt,        // one did, under another salt
  kNoCheckpointBeforeDivergence,  // one did, but no state was kept (so late) before the prompts part
  kEvicted,                       // the state was kept, and then dropped for want of memory
};
inline constexpr int kNumMissReasons = 7;
std::string_view miss_reason_name(MissReason reason) noexcept;  // "none", "disabled", ..., "evicted"

}  // namespace coluber
