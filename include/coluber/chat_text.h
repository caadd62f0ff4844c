// SPDX-License-Identifier: Apache-2.0
//
// A conversation as a chat template renders it, which knows what somebody typed and what the template wrote: only the
// latter can hold special tokens. Plain values.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace coluber {

// Bytes [begin, end) of a text.
struct TextRange {
  size_t begin = 0;
  size_t end = 0;
};

struct ChatText {
  std::string text;
  std::vector<TextRange> typed;  // in order, apart from each other

  ChatText behind(size_t begin) const {
    ChatText rest{text.substr(begin), {}};
    for (const TextRange& range : typed)
      if (range.end > begin) rest.typed.push_back({range.begin > begin ? range.begin - begin : 0, range.end - begin});
    return rest;
  }
};

}  // namespace coluber
