// SPDX-License-Identifier: Apache-2.0
//
// Input: a byte that chooses a family, a byte that says how the text is cut, the text. Whatever a model says, what is
// read of it is the same however it is cut, calls come in order, and a name comes once.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "text/tool_parser/answer_reader.h"

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

struct Told {
  std::string text;
  std::vector<std::string> calls;
  bool operator==(const Told&) const = default;
};

Told read(const coluber::AnswerReading& how, std::string_view text, size_t step) {
  coluber::AnswerReader reader(how);
  Told told;
  for (size_t at = 0;; at += step) {
    const bool ends = text.size() - at <= step;
    const coluber::AnswerDelta delta = reader.push(text.substr(at, step), ends);
    told.text += delta.content;
    for (const coluber::CallDelta& call : delta.calls) {
      const auto index = static_cast<size_t>(call.index);
      require(index <= told.calls.size());
      require(call.name.empty() == (index < told.calls.size()));
      if (index == told.calls.size()) told.calls.emplace_back();
      told.calls[index] += call.name + call.id + call.arguments;
    }
    if (ends) return told;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const auto& formats = coluber::tool_formats();
  coluber::AnswerReading how;
  how.calls = formats[data[0] % formats.size()];
  how.tools = *coluber::parse_json(
      R"([{"type":"function","function":{"name":"f","parameters":{"properties":{"a":{"type":"string"}}}}}])", "tools");
  if ((data[0] & 0x80) != 0) how.reasoning = &coluber::reasoning_formats().front();
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  require(read(how, text, std::max<size_t>(text.size(), 1)) == read(how, text, 1 + data[1] % 7));
  return 0;
}
