// SPDX-License-Identifier: Apache-2.0
//
// Refusals and special tokens of tokenizers without a tokenizer.json; component_test.cc compares their ids with those
// of the packages that define them.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/mapped_file.h"
#include "text/tokenizer/tokenizer.h"

namespace coluber {
namespace {

constexpr const char* kWorld = "folder/rwkv_vocab_v1.txt";
constexpr const char* kModel = "folder/tokenizer.model";

std::string fixture(const std::string& name) {
  return std::string(COLUBER_SOURCE_DIR) + "/tests/data/tokenizers/" + name;
}

Error refusal(const std::string& bytes, const std::string& source, const std::string& config = "") {
  try {
    Tokenizer::from_file_bytes(bytes, config, source);
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "accepted: " << bytes;
  return Error(ErrorCode::kOk, "");
}

void expect_tells(const Error& error, const std::string& part) {
  EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
      << "\"" << part << "\" is not in: " << error.what();
}

TEST(WorldVocabulary, LiteralsAreReadAsPythonDoes) {
  const auto tokenizer = Tokenizer::from_file_bytes(
      "1 '\\x00' 1\r\n2 \"it's\" 4\n3 b'\\xe4\\xbd' 2\n4 '\\\\\\'' 2\n5 '\\u4f60' 3\n6 ' ' 1\n7 b'\\xa0' 1\n", "",
      kWorld);
  EXPECT_EQ(tokenizer->token_bytes(1), std::string(1, '\0'));
  EXPECT_EQ(tokenizer->token_bytes(2), "it's");
  EXPECT_EQ(tokenizer->token_bytes(3), "\xe4\xbd");
  EXPECT_EQ(tokenizer->token_bytes(4), "\\'");
  EXPECT_EQ(tokenizer->token_bytes(5), "\xe4\xbd\xa0");
  EXPECT_EQ(tokenizer->encode("it's \xe4\xbd\xa0").value(), (std::vector<int32_t>{2, 6, 5}));
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{3, 7, 6}), "\xe4\xbd\xa0 ") << "halves of a character meet";
  EXPECT_FALSE(tokenizer->encode("x")) << "no token has that byte";
}

TEST(WorldVocabulary, IdZeroEndsATextAndIsSpelledByNone) {
  const auto tokenizer = Tokenizer::load(fixture("rwkv_world/rwkv_vocab_v20230424.txt"));
  EXPECT_EQ(tokenizer->eos_id(), 0);
  EXPECT_TRUE(tokenizer->is_special(0));
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{33, 0, 33}), "  ");
  EXPECT_EQ(tokenizer->max_id(), 65529);
  EXPECT_EQ(tokenizer->vocab_size(), 65530);
  const auto ids = tokenizer->encode(tokenizer->eos_token()).value();
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 0), 0);
}

TEST(WorldVocabulary, TheConfigMayNameIdZero) {
  const std::string bytes = "1 'a' 1\n2 '<' 1\n3 's' 1\n4 '>' 1\n";
  for (const char* name : {"<s>", "<|rwkv_tokenizer_end_of_text|>"}) {
    const std::string config = std::string(R"({"eos_token": ")") + name +
                               R"(", "added_tokens_decoder": {"0": {"content": ")" + name + R"(", "special": true}}})";
    const auto tokenizer = Tokenizer::from_file_bytes(bytes, config, kWorld);
    EXPECT_EQ(tokenizer->eos_id(), 0);
    EXPECT_EQ(tokenizer->encode("a" + std::string(name) + "a").value(), (std::vector<int32_t>{1, 0, 1}));
    EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{1, 0, 1}), "aa");
    EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{1, 0, 1}, false), "a" + std::string(name) + "a");
  }
}

TEST(WorldVocabulary, DamagedLinesAreNamed) {
  for (const auto& [text, part] : std::vector<std::pair<std::string, std::string>>{
           {"", "no tokens"},
           {"1 'a' 1\n2\n", "line 2: expected an id, a literal and a length"},
           {"1 'a 1\n", "no Python literal"},
           {"1 a 1\n", "no Python literal"},
           {"1 '\\q' 1\n", "no Python literal"},
           {"1 '\\ud800' 3\n", "no Python literal"},
           {"1 'ab' 3\n", "should be 3 bytes long and is 2"},
           {"0 'a' 1\n", "the id 0"},
           {"-1 'a' 1\n", "an id from 0"},
           {"99999999999999999999 'a' 1\n", "an id from 0"},
           {"1 'a' 1\n1 'b' 1\n", "line 2: the token or its id 1 is there twice"},
           {"1 'a' 1\n2 'a' 1\n", "twice"},
           {"1 '' 0\n", "empty"}}) {
    const Error error = refusal(text, kWorld);
    EXPECT_EQ(error.code(), ErrorCode::kInvalidData);
    expect_tells(error, part);
    expect_tells(error, kWorld);
  }
}

TEST(SentencePiece, HalfAFileIsRefused) {
  const std::string bytes = read_text_file(fixture("sp_bpe/tokenizer.model"));
  EXPECT_NO_THROW(Tokenizer::from_file_bytes(bytes, "", kModel));
  expect_tells(refusal(bytes.substr(0, bytes.size() / 2), kModel), "a download that broke off");
  expect_tells(refusal("", kModel), "no pieces");
  expect_tells(refusal("PK\x03\x04 something", kModel), "expected a tokenizer.model of SentencePiece");
}

TEST(SentencePiece, ItsControlPiecesAreSpecialTokens) {
  const std::string bytes = read_text_file(fixture("sp_bpe/tokenizer.model"));
  const auto tokenizer = Tokenizer::from_file_bytes(bytes, "", kModel);
  EXPECT_EQ(tokenizer->bos_token(), "<s>");
  EXPECT_EQ(tokenizer->eos_id(), 2);
  EXPECT_TRUE(tokenizer->is_special(2));
  EXPECT_EQ(tokenizer->encode("a</s>").value().back(), 2);
  EXPECT_EQ(tokenizer->encode("hello").value(), tokenizer->encode("hello", false).value()) << "it says nothing of <s>";
  EXPECT_EQ(tokenizer->token_bytes(tokenizer->token_to_id("<0x0A>").value()), "\n");
}

TEST(SentencePiece, TheConfigAddsTokensAndTheStart) {
  const std::string bytes = read_text_file(fixture("sp_bpe/tokenizer.model"));
  const auto tokenizer = Tokenizer::from_file_bytes(
      bytes,
      R"({"tokenizer_class": "LlamaTokenizer", "pad_token": "<pad>", "bos_token": "<s>", "added_tokens_decoder":
          {"900": {"content": "<|user|>", "special": true}, "905": {"content": "<pad>", "special": true}}})",
      kModel);
  EXPECT_EQ(tokenizer->encode("hi").value().front(), 1) << "as the class does by default";
  EXPECT_EQ(tokenizer->encode("<|user|>hi", false).value().front(), 900);
  EXPECT_EQ(tokenizer->token_to_id("<pad>"), 905);
  EXPECT_FALSE(tokenizer->contains(903));
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{900, 1, 905}), "");
}

TEST(SentencePiece, LegacyTokenizersMarkEveryPart) {
  const std::string bytes = read_text_file(fixture("sp_bpe/tokenizer.model"));
  const auto ids_of = [&](const char* config) {
    return Tokenizer::from_file_bytes(bytes, config, kModel)->encode("</s>hello", false).value();
  };
  const auto plain = ids_of("{}"), legacy = ids_of(R"({"legacy": true})");
  const auto tokenizer = Tokenizer::from_file_bytes(bytes, "", kModel);
  EXPECT_NE(plain, legacy);
  auto marked = tokenizer->encode("hello", false).value();
  marked.insert(marked.begin(), 2);
  EXPECT_EQ(legacy, marked);
}

TEST(Tiktoken, RanksAreCheckedLineByLine) {
  for (const auto& [text, part] : std::vector<std::pair<std::string, std::string>>{
           {"QQ== 0\nQg== x\n", "line 2: expected a token in base64"},
           {"QQ== 0\nQQ== 1\n", "line 2: the token or its rank 1 is there twice"},
           {"QQ== 0\nQg== 0\n", "twice"},
           {"QQ== 99999999\n", "the rank 99999999 is above"}}) {
    const Error error = refusal(text, "folder/tiktoken.model");
    EXPECT_EQ(error.code(), ErrorCode::kInvalidData);
    expect_tells(error, part);
  }
}

TEST(Tiktoken, ASplitThatIsNotKnownIsRefusedByItsClass) {
  const std::string bytes = read_text_file(fixture("tiktoken/tiktoken.model"));
  const Error error = refusal(bytes, kModel, R"({"tokenizer_class": "QWenTokenizer"})");
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  expect_tells(error, "QWenTokenizer");
  expect_tells(error, "TikTokenTokenizer");
}

TEST(Tiktoken, SpecialTokensStandBehindTheRanks) {
  const auto tokenizer = Tokenizer::load(fixture("tiktoken/tiktoken.model"));
  EXPECT_EQ(tokenizer->bos_id(), 900);
  EXPECT_EQ(tokenizer->token_to_id("<|im_end|>"), 902);
  EXPECT_EQ(tokenizer->token_to_id("<|reserved_token_910|>"), 910);
  EXPECT_EQ(tokenizer->max_id(), 900 + 255);
  EXPECT_FALSE(tokenizer->token_to_id("<|reserved_token_902|>")) << "the config names that one";
}

}  // namespace
}  // namespace coluber
