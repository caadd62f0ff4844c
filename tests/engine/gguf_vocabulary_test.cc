// SPDX-License-Identifier: Apache-2.0
//
// Vocabularies as GGUF files store them, made here from the files of tests/data/tokenizers as llama.cpp's converter
// makes them, against the ids of their origins.
#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "base/json.h"
#include "base/mapped_file.h"
#include "text/tokenizer/stored_vocabulary.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/vocabulary_splits.h"

namespace coluber {
namespace {

std::string data(const std::string& path) { return std::string(COLUBER_SOURCE_DIR) + "/tests/data/tokenizers/" + path; }

struct Lists {
  std::vector<std::string> tokens, merges;
  std::vector<double> scores;
  std::vector<int64_t> types, charsmap;
  std::vector<std::string_view> token_views, merge_views;

  StoredVocabulary vocabulary(std::string_view model, std::string_view split = {}) {
    token_views.assign(tokens.begin(), tokens.end());
    merge_views.assign(merges.begin(), merges.end());
    StoredVocabulary v;
    v.model = model;
    v.split = split;
    v.tokens = token_views;
    v.merges = merge_views;
    v.scores = scores;
    v.types = types;
    v.charsmap = charsmap;
    return v;
  }
  void add(std::string token, StoredTokenType type, double score = 0) {
    tokens.push_back(std::move(token));
    types.push_back(static_cast<int64_t>(type));
    scores.push_back(score);
  }
};

std::vector<int32_t> ids_in(const Json& json) {
  std::vector<int32_t> ids;
  for (const Json& id : json.as_array()) ids.push_back(static_cast<int32_t>(id.as_int()));
  return ids;
}

void expect_cases(const Tokenizer& tokenizer, const std::string& name, int at_least) {
  int compared = 0;
  const Json cases = read_json_file(data(name + "/cases.json"));
  for (const Json& one : cases.at("cases").as_array()) {
    const std::string& text = one.at("text").as_string();
    SCOPED_TRACE(Json(text).dump());
    ++compared;
    EXPECT_EQ(tokenizer.encode(text, false).value(), ids_in(one.at("ids")));
    EXPECT_EQ(tokenizer.decode(ids_in(one.at("ids")), false), one.at("decoded").as_string());
  }
  EXPECT_GE(compared, at_least);
}

// Python's repr of bytes, without what stands around it.
std::string escaped(const std::string& bytes) {
  std::string out;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\\') {
      out += "\\\\";
    } else if (c == '\n' || c == '\r' || c == '\t') {
      out += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else if (byte < 0x20 || byte >= 0x7F) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out;
}

TEST(GgufVocabulary, WorldGivesTheIdsOfItsFile) {
  const auto origin = Tokenizer::load(data("rwkv_world/rwkv_vocab_v20230424.txt"));
  Lists lists;
  lists.add("<s>", StoredTokenType::kControl);
  for (int32_t id = 1; id <= origin->max_id(); ++id)
    lists.add(escaped(origin->token_bytes(id)), StoredTokenType::kNormal);
  lists.add("[PAD65530]", StoredTokenType::kUnused);
  const auto tokenizer = Tokenizer::from_vocabulary(lists.vocabulary("rwkv"), "x.gguf");
  expect_cases(*tokenizer, "rwkv_world", 100);
  EXPECT_EQ(tokenizer->eos_id(), 0);
}

TEST(GgufVocabulary, DamagedWorldTokensAreRefused) {
  for (const char* token : {"\\x4", "\\q", ""}) {
    Lists lists;
    lists.add("<s>", StoredTokenType::kControl);
    lists.add("a", StoredTokenType::kNormal);
    lists.add(token, StoredTokenType::kNormal);
    try {
      Tokenizer::from_vocabulary(lists.vocabulary("rwkv"), "x.gguf");
      ADD_FAILURE() << token;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("x.gguf: token 2"), std::string::npos) << error.what();
    }
  }
}

// Fields of a protocol buffer whose numbers and kinds are known.
class Fields {
 public:
  explicit Fields(std::string_view bytes) : rest_(bytes) {}
  bool next() {
    if (rest_.empty()) return false;
    const uint64_t tag = varint();
    number = tag >> 3;
    value = (tag & 7) == 0 ? varint() : 0;
    if ((tag & 7) == 2) bytes = take(static_cast<size_t>(varint()));
    if ((tag & 7) == 5) bytes = take(4);
    return true;
  }
  uint64_t number = 0, value = 0;
  std::string_view bytes;

 private:
  std::string_view take(size_t count) {
    const std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(taken.size());
    return taken;
  }
  uint64_t varint() {
    uint64_t result = 0;
    for (int shift = 0; !rest_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      result |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) break;
    }
    return result;
  }
  std::string_view rest_;
};

TEST(GgufVocabulary, UnigramGivesTheIdsOfItsModel) {
  const std::string model = read_text_file(data("sp_unigram/tokenizer.model"));
  Lists lists;
  for (Fields top(model); top.next();) {
    if (top.number == 1) {
      std::string text;
      float score = 0;
      uint64_t type = 1;
      for (Fields piece(top.bytes); piece.next();) {
        if (piece.number == 1) text = piece.bytes;
        if (piece.number == 2) std::memcpy(&score, piece.bytes.data(), sizeof score);
        if (piece.number == 3) type = piece.value;
      }
      lists.add(text, static_cast<StoredTokenType>(type), static_cast<double>(score));
    } else if (top.number == 3) {
      for (Fields normalizer(top.bytes); normalizer.next();)
        for (const char c : normalizer.number == 2 ? normalizer.bytes : std::string_view())
          lists.charsmap.push_back(static_cast<unsigned char>(c));
    }
  }
  ASSERT_FALSE(lists.charsmap.empty());
  StoredVocabulary v = lists.vocabulary("t5");
  v.remove_extra_spaces = true;
  v.add_eos = false;
  expect_cases(*Tokenizer::from_vocabulary(v, "x.gguf"), "sp_unigram", 100);
}

// The two tokens that a token of tiktoken's ranks was joined from last, as the converter finds them.
std::vector<std::string> last_join(const std::map<std::string, int32_t>& ranks, const std::string& token,
                                   int32_t rank) {
  std::vector<std::string> parts;
  for (const char c : token) parts.emplace_back(1, c);
  while (parts.size() > 2) {
    size_t best = parts.size();
    int32_t lowest = rank;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto found = ranks.find(parts[i] + parts[i + 1]);
      if (found == ranks.end() || found->second >= lowest) continue;
      lowest = found->second;
      best = i;
    }
    if (best == parts.size()) break;
    parts[best] += parts[best + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
  return parts;
}

TEST(GgufVocabulary, KimiGivesTheIdsOfItsRanks) {
  const auto origin = Tokenizer::load(data("tiktoken/tiktoken.model"));
  std::map<std::string, int32_t> ranks;
  Lists lists;
  for (int32_t id = 0; id <= origin->max_id(); ++id) {
    const bool special = origin->is_special(id);
    lists.add(origin->id_to_token(id).value(), special ? StoredTokenType::kControl : StoredTokenType::kNormal);
    if (!special) ranks.emplace(origin->token_bytes(id), id);
  }
  std::map<int32_t, std::vector<std::string>> joins;
  for (const auto& [token, id] : ranks)
    if (token.size() > 1) joins[id] = last_join(ranks, token, id);
  for (const auto& [id, parts] : joins) {
    if (parts.size() != 2) continue;
    const auto letters = [&](const std::string& bytes) { return origin->id_to_token(ranks.at(bytes)).value(); };
    lists.merges.push_back(letters(parts[0]) + " " + letters(parts[1]));
  }
  expect_cases(*Tokenizer::from_vocabulary(lists.vocabulary("gpt2", "kimi-k2"), "x.gguf"), "tiktoken", 50);
}

// Texts of every kind of character that the expressions tell apart.
constexpr const char* kTexts[] = {"Hello, World's end!  123456 it'S 12\n\n  x\t y",
                                  "价格是1,234.5元。こんにちは　한국어 Grüße e\xCC\x81t\xC3\xA9",
                                  "int main() { return 0x1F + a[10]; } // <tag>\r\n",
                                  "१२३ ٣٤ \xF0\x9F\x98\x80!!",
                                  "   ",
                                  ""};

TEST(GgufVocabulary, EveryNamedSplitCutsTextsWithoutLoss) {
  const auto letters = Tokenizer::load(data("bpe_gpt2/tokenizer.json"));
  Lists lists;
  for (int32_t id = 0; id <= letters->max_id(); ++id)
    if (letters->token_bytes(id).size() == 1 && !letters->is_special(id))
      lists.add(letters->id_to_token(id).value(), StoredTokenType::kNormal);
  ASSERT_EQ(lists.tokens.size(), 256U);
  int names = 0;
  for (const VocabularySplit& split : vocabulary_splits()) {
    for (const std::string_view name : split.names) {
      SCOPED_TRACE(name);
      ++names;
      const auto tokenizer = Tokenizer::from_vocabulary(lists.vocabulary("gpt2", name), "x.gguf");
      for (const char* text : kTexts) {
        if (split.composes && std::string_view(text).find("e\xCC\x81") != std::string_view::npos) continue;
        const auto ids = tokenizer->encode(text, false);
        ASSERT_TRUE(ids) << text;
        EXPECT_EQ(tokenizer->decode(*ids, false), text);
      }
    }
  }
  EXPECT_GE(names, 60);
}

}  // namespace
}  // namespace coluber
