// SPDX-License-Identifier: Apache-2.0
//
// Where a JSON value ends, one character at a time, and nothing else of it: whether it is right is told by what reads
// it. One value, one thread.
#pragma once

#include <string>

namespace coluber {

class JsonValueEnd {
 public:
  enum class State { kGoing, kEnded, kEndedBefore, kBad };
  // kEndedBefore: the value ended before this character, which is not part of it (numbers, true, false, null).
  State take(char c);
  bool is_text() const noexcept { return kind_ == Kind::kText; }

 private:
  enum class Kind { kNone, kText, kContainer, kWord };
  Kind kind_ = Kind::kNone;
  std::string open_;  // brackets
  bool in_text_ = false, escaped_ = false;
};

}  // namespace coluber
