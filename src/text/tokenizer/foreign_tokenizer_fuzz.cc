// SPDX-License-Identifier: Apache-2.0
//
// Input: a byte for the kind of file, the file. Of a GGUF file's lists (g, l, r, t: gpt2, llama, rwkv, t5) the file is
// lines: a digit for the type and a token, or m and a merge. Whatever the bytes, loading ends in a Tokenizer or an
// Error, and what the Tokenizer gives keeps its promises: text that is UTF-8, a stream equal to the whole.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/utf8.h"
#include "text/tokenizer/stored_vocabulary.h"
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

std::unique_ptr<coluber::Tokenizer> load_lists(std::string_view lines, std::string_view model) {
  constexpr std::string_view kSplits[] = {"llama-bpe", "qwen2", "gpt-2", "falcon", "default", "kimi-k2", "tekken"};
  coluber::StoredVocabulary v;
  std::vector<std::string_view> tokens, merges;
  std::vector<int64_t> types;
  std::vector<double> scores;
  v.model = model;
  v.split = kSplits[lines.size() % std::size(kSplits)];
  while (!lines.empty()) {
    const size_t end = std::min(lines.find('\n'), lines.size());
    const std::string_view line = lines.substr(0, end);
    lines.remove_prefix(std::min(end + 1, lines.size()));
    if (line.starts_with('m')) {
      merges.push_back(line.substr(1));
    } else if (!line.empty()) {
      types.push_back(line[0] - '0');
      scores.push_back(-static_cast<double>(line[0] * 7 + static_cast<int>(tokens.size())));
      tokens.push_back(line.substr(1));
    }
  }
  v.tokens = tokens;
  v.merges = merges;
  v.types = types;
  v.scores = scores;
  if (!types.empty()) v.eos_id = types.back();
  v.bos_id = 0;
  return coluber::Tokenizer::from_vocabulary(v, "x.gguf");
}

std::unique_ptr<coluber::Tokenizer> load(uint8_t kind, std::string_view file) {
  const std::pair<uint8_t, std::string_view> kLists[] = {{'g', "gpt2"}, {'l', "llama"}, {'r', "rwkv"}, {'t', "t5"}};
  for (const auto& [letter, model] : kLists)
    if (kind == letter) return load_lists(file, model);
  return coluber::Tokenizer::from_file_bytes(file, {}, kind == 'w' ? "rwkv_vocab_v1.txt" : "tokenizer.model");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view file(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    const auto tokenizer = load(data[0], file);
    use(*tokenizer, "Hello,  world\n \xe4\xbd\xa0\xe5\xa5\xbd \xef\xac\x81 ab ");
    use(*tokenizer, file.substr(0, 200));
  } catch (const coluber::Error&) {
  }
  return 0;
}
