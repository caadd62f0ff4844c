// SPDX-License-Identifier: Apache-2.0
//
// An answer of /v1/chat/completions as a row of blocks: what was thought, text, calls of tools. Fed with messages or
// with the deltas of a stream; says where a block begins, grows and ends, which is how other APIs tell of answers. No
// state but the answer's.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace coluber::server {

struct AnswerBlock {
  enum class Kind { kReasoning, kText, kCall };
  Kind kind = Kind::kText;
  std::string text;           // of a call its arguments, JSON as it came
  std::string call_id, name;  // of a call
};

class AnswerBlocks {
 public:
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual void block_begins(const AnswerBlock& block, size_t index) = 0;
    virtual void block_grows(const AnswerBlock& block, size_t index, const std::string& by) = 0;
    virtual void block_ends(const AnswerBlock& block, size_t index) = 0;
  };

  // A `message` or a `delta`.
  void take(const Json& message, Listener& listener);
  // The last block ends.
  void end(Listener& listener);
  const std::vector<AnswerBlock>& all() const noexcept { return blocks_; }

 private:
  void begin(AnswerBlock block, Listener& listener);
  void grow(AnswerBlock::Kind kind, const Json* text, Listener& listener);
  void take_call(const Json& call, int64_t place, Listener& listener);

  std::vector<AnswerBlock> blocks_;
  bool open_ = false;
  int64_t call_ = -1;  // index of the call that is open, as the stream counts calls
};

}  // namespace coluber::server
