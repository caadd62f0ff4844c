// SPDX-License-Identifier: Apache-2.0
//
// Input: a tokenizer.json, a zero byte, a text. Whatever the bytes, loading ends in a Tokenizer or an Error, and what
// the Tokenizer gives keeps its promises: ids that it knows, text that is UTF-8, a stream equal to the whole.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/utf8.h"
#include "text/tokenizer/tokenizer.h"

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

void use(const coluber::Tokenizer& tokenizer, std::string_view text) {
  for (const bool special : {false, true}) {
    const auto ids = tokenizer.encode(text, special);
    if (!ids) continue;
    const std::string decoded = tokenizer.decode(*ids, special);
    require(coluber::is_valid_utf8(decoded));
    coluber::DetokenizeStream stream(tokenizer, special);
    std::string streamed;
    for (const int32_t id : *ids) {
      const std::string part = stream.push(id);
      require(coluber::is_valid_utf8(part));
      streamed += part;
      tokenizer.token_bytes(id);
    }
    require(streamed + stream.flush() == decoded);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = std::min(input.find('\0'), size);
  try {
    const auto tokenizer = coluber::Tokenizer::from_json(input.substr(0, end), {}, "fuzz");
    use(*tokenizer, input.substr(std::min(end + 1, size)));
  } catch (const coluber::Error&) {
  }
  return 0;
}
