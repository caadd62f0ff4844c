// SPDX-License-Identifier: Apache-2.0
#include "text/tool_parser/answer_reader.h"

namespace coluber {

AnswerReader::AnswerReader(const AnswerReading& reading) : one_call_(reading.one_call) {
  if (reading.reasoning != nullptr) reasoning_.emplace(*reading.reasoning, reading.reasoning_open);
  if (reading.calls != nullptr) calls_ = reading.calls->make(reading.tools);
}

AnswerDelta AnswerReader::push(std::string_view text, bool ends) {
  AnswerDelta delta;
  std::string answer;
  if (reasoning_) {
    reasoning_->push(text, delta, answer);
    if (ends) reasoning_->finish(delta, answer);
    text = answer;
  }
  if (calls_) {
    calls_->push(text, delta);
    if (ends) calls_->finish(delta);
  } else {
    delta.content += text;
  }
  if (one_call_) std::erase_if(delta.calls, [](const CallDelta& call) { return call.index > 0; });
  return delta;
}

}  // namespace coluber
