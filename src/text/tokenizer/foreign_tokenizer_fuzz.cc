// SPDX-License-Identifier: Apache-2.0
//
// Input: a byte for the kind of file, the file. Whatever the bytes, loading ends in a Tokenizer or an Error, and what
// the Tokenizer gives keeps its promises: text that is UTF-8, a stream equal to the whole.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "text/tokenizer/tokenizer.h"

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

void use(const coluber::Tokenizer& tokenizer, std::string_view text) {
  const auto ids = tokenizer.encode(text, true);
  if (!ids) return;
  const std::string decoded = tokenizer.decode(*ids, false);
  require(coluber::is_valid_utf8(decoded));
  coluber::DetokenizeStream stream(tokenizer, false);
  std::string streamed;
  for (const int32_t id : *ids) {
    require(tokenizer.contains(id));
    streamed += stream.push(id);
    tokenizer.token_bytes(id);
  }
  require(streamed + stream.flush() == decoded);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view file(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    const auto tokenizer =
        coluber::Tokenizer::from_file_bytes(file, {}, data[0] == 'w' ? "rwkv_vocab_v1.txt" : "tokenizer.model");
    use(*tokenizer, "Hello,  world\n \xe4\xbd\xa0\xe5\xa5\xbd \xef\xac\x81 ab ");
    use(*tokenizer, file.substr(0, 200));
  } catch (const coluber::Error&) {
  }
  return 0;
}
