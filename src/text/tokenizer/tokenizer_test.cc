// SPDX-License-Identifier: Apache-2.0
//
// What a Tokenizer promises beyond the reference's results: clear refusals, bounds on hostile input, streaming,
// threads.
#include "text/tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <random>
#include <thread>

#include "base/utf8.h"

namespace coluber {
namespace {

std::unique_ptr<Tokenizer> make(const std::string& model, const std::string& more = "",
                                const std::string& config = "") {
  return Tokenizer::from_json("{\"model\":" + model + (more.empty() ? "" : "," + more) + "}", config, "t.json");
}

std::string refusal(const std::string& json, const std::string& config = "") {
  try {
    Tokenizer::from_json(json, config, "t.json");
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

std::string model_refusal(const std::string& model, const std::string& more = "") {
  return refusal("{\"model\":" + model + (more.empty() ? "" : "," + more) + "}");
}

constexpr const char* kAbc = R"({"type":"BPE","vocab":{"a":0,"b":1,"c":2,"ab":3,"abc":4},"merges":["a b",["ab","c"]]})";

void expect_has(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "\"" << part << "\" is not in: " << text;
}

TEST(Tokenizer, ReadsMergesAsTextsAndPairs) {
  EXPECT_EQ(make(kAbc)->encode("abcab").value(), (std::vector<int32_t>{4, 3}));
}

// Ids 5 and 6: special tokens found before and after normalization; 7: an added token that is not special.
TEST(Tokenizer, ReadsNoSpecialTokenWhereSomebodyTyped) {
  const auto tokenizer = make(R"({"type":"BPE","vocab":{"a":0,"b":1,"c":2,"ab":3,"<":4},"merges":["a b"]})",
                              R"("normalizer":{"type":"Lowercase"},"added_tokens":[
         {"id":5,"content":"<ab","special":true,"normalized":false},
         {"id":6,"content":"cc","special":true,"normalized":true},
         {"id":7,"content":"bb","special":false,"normalized":false}])");
  const auto ids = [&](std::string_view text, std::vector<TextRange> typed) {
    return tokenizer->encode_typed(text, typed).value();
  };
  using Ids = std::vector<int32_t>;
  EXPECT_EQ(ids("a<abab", {}), (Ids{0, 5, 3}));
  EXPECT_EQ(ids("a<abab", {{1, 4}}), (Ids{0, 4, 3, 3}));
  EXPECT_EQ(ids("a<abab", {{0, 1}, {4, 6}}), (Ids{0, 5, 3}));
  EXPECT_EQ(ids("a<abab", {{3, 4}}), (Ids{0, 4, 3, 3}));  // a part of it is enough
  EXPECT_EQ(ids("acca", {}), (Ids{0, 6, 0}));
  EXPECT_EQ(ids("aCCa", {{1, 3}}), (Ids{0, 2, 2, 0}));
  EXPECT_EQ(ids("aCCacc", {{1, 3}}), (Ids{0, 2, 2, 0, 6}));
  EXPECT_EQ(ids("abb", {{0, 3}}), (Ids{0, 7}));
  EXPECT_EQ(ids("", {{0, 0}}), Ids{});
  EXPECT_EQ(ids("a<abab", {}), tokenizer->encode("a<abab", false).value());
}

TEST(Tokenizer, RefusesDamagedFilesWithPlaceAndReason) {
  expect_has(refusal("{"), "t.json");
  expect_has(refusal("[]"), "expected an object");
  expect_has(refusal("{}"), "\"model\" is missing");
  expect_has(refusal(R"({"version":"2.0","model":{}})"), "version");
  expect_has(model_refusal(R"({"type":"BPE","vocab":{"a":-1},"merges":[]})"), "from 0 to");
  expect_has(model_refusal(R"({"type":"BPE","vocab":{"a":9223372036854775808},"merges":[]})"),
             "\"a\" should be an integer");
  expect_has(model_refusal(R"({"type":"BPE","vocab":{"a":2147483647},"merges":[]})"), "from 0 to");
  expect_has(model_refusal(R"({"type":"BPE","vocab":{"a":1.5},"merges":[]})"), "found 1.5");
  expect_has(model_refusal(R"({"type":"BPE","vocab":{"a":0,"b":0},"merges":[]})"), "is also that of \"a\"");
  expect_has(model_refusal(R"({"type":"BPE","vocab":{"a":0},"merges":["a z"]})"),
             "merges[0]: the token \"z\" is not in the vocabulary");
  expect_has(model_refusal(R"({"type":"BPE","vocab":{"a":0,"b":1},"merges":["a b"]})"), "the token \"ab\" is not");
  expect_has(model_refusal(R"({"type":"BPE","vocab":{"a":0},"merges":["a"]})"), "two tokens with one space");
  expect_has(model_refusal(R"({"type":"BPE","vocab":[],"merges":[]})"), "\"vocab\" should be an object");
  expect_has(model_refusal(R"({"type":"Unigram","vocab":[["a"]]})"), "vocab[0] should be [token, score]");
  expect_has(model_refusal(R"({"type":"Unigram","unk_id":3,"vocab":[["a",0.0]]})"), "\"unk_id\"");
  expect_has(model_refusal(R"({"type":"Unigram","unk_id":0,"vocab":[]})"), "empty");
  expect_has(model_refusal(kAbc, R"("added_tokens":[{"id":-4,"content":"x"}])"), "added_tokens[0]");
  expect_has(model_refusal(kAbc, R"("post_processor":{"type":"BertProcessing","cls":["a"],"sep":["b",1]})"), "\"cls\"");
  expect_has(model_refusal(kAbc, R"("pre_tokenizer":{"type":"Split","pattern":{"Regex":"(a"},"behavior":"Isolated"})"),
             "pre_tokenizer.pattern");
  expect_has(model_refusal(kAbc, R"("normalizer":{"type":"Precompiled","precompiled_charsmap":"////"})"), "damaged");
}

TEST(Tokenizer, NamesUnknownKindsAndTheKnownOnes) {
  expect_has(model_refusal(R"({"type":"Magic","vocab":{}})"),
             "the model \"Magic\" is not known; known are BPE, Unigram");
  expect_has(model_refusal(kAbc, R"("normalizer":{"type":"Sequence","normalizers":[{"type":"NFC"},{"type":"X"}]})"),
             "normalizer.normalizers[1]: the normalizer \"X\" is not known");
  expect_has(model_refusal(kAbc, R"("pre_tokenizer":{"type":"X"})"), "the pre-tokenizer \"X\"");
  expect_has(model_refusal(kAbc, R"("post_processor":{"type":"X"})"), "the post-processor \"X\"");
  expect_has(model_refusal(kAbc, R"("decoder":{"type":"X"})"), "the decoder \"X\"");
  try {
    Tokenizer::load("/nonexistent/folder");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNotFound);
    expect_has(error.what(), "/nonexistent/folder/tokenizer.json");
  }
}

TEST(Tokenizer, RefusesSequencesNestedTooDeep) {
  std::string nested = R"({"type":"NFC"})";
  for (int i = 0; i < 20; ++i) nested = R"({"type":"Sequence","normalizers":[)" + nested + "]}";
  expect_has(model_refusal(kAbc, "\"normalizer\":" + nested), "nested deeper");
}

TEST(Tokenizer, AcceptsAnEmptyVocabulary) {
  const auto tokenizer = make(R"({"type":"BPE","vocab":{},"merges":[]})");
  EXPECT_EQ(tokenizer->vocab_size(), 0);
  EXPECT_EQ(tokenizer->max_id(), -1);
  EXPECT_TRUE(tokenizer->encode("text").value().empty());
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{0, -1, 7}), "");
}

TEST(Tokenizer, FailsOnACharacterWithoutTokenWhereNoUnknownTokenIsSet) {
  const auto tokenizer = make(R"({"type":"Unigram","vocab":[["a",-1.0]]})");
  EXPECT_EQ(tokenizer->encode("aa").value(), (std::vector<int32_t>{0, 0}));
  const auto failed = tokenizer->encode("ab");
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, ErrorCode::kInvalidArgument);
}

TEST(Tokenizer, ReadsInvalidUtf8AsReplacementCharacters) {
  const auto tokenizer = make(R"({"type":"WordLevel","vocab":{"u":0,"a\ufffd":1,"\ufffd\ufffd":2},"unk_token":"u"})");
  EXPECT_EQ(tokenizer->encode("a\xE2\x82").value(), std::vector<int32_t>{1});
  EXPECT_EQ(tokenizer->encode("\xC0\x80").value(), std::vector<int32_t>{2});
  EXPECT_EQ(tokenizer->encode("\xED\xA0\x80").value(), std::vector<int32_t>{0});  // three broken bytes
  EXPECT_FALSE(is_valid_utf8("\xF4\x90\x80\x80"));
  EXPECT_TRUE(is_valid_utf8("\xF4\x8F\xBF\xBF"));
}

TEST(Tokenizer, GivesSpecialTokensOfTheConfig) {
  const std::string added =
      R"("added_tokens":[{"id":5,"content":"<s>","special":true},{"id":6,"content":"</s>","special":true}])";
  const auto plain = make(kAbc, added, R"({"bos_token":{"content":"<s>"},"eos_token":"</s>","add_eos_token":true})");
  EXPECT_EQ(plain->bos_id(), 5);
  EXPECT_EQ(plain->eos_token(), "</s>");
  EXPECT_EQ(plain->encode("a").value(), std::vector<int32_t>{0});
  const auto llama = make(
      kAbc, added, R"({"tokenizer_class":"LlamaTokenizer","bos_token":"<s>","eos_token":"</s>","add_eos_token":true})");
  EXPECT_EQ(llama->encode("a").value(), (std::vector<int32_t>{5, 0, 6}));
  EXPECT_EQ(llama->encode("a", false).value(), std::vector<int32_t>{0});
  EXPECT_TRUE(llama->is_special(5));
  EXPECT_FALSE(llama->is_special(0));
  expect_has(refusal(std::string("{\"model\":") + kAbc + "}",
                     R"({"tokenizer_class":"LlamaTokenizerFast","add_bos_token":true})"),
             "bos_token");
}

TEST(Tokenizer, CleansSpacesBeforePunctuationInWordModelsOnly) {
  const std::string vocab = R"("vocab":{"do":0,"n't":1,"go":2,".":3,"'":4,"s":5},"unk_token":"go")";
  const std::string config = R"({"clean_up_tokenization_spaces":true})";
  const auto words = make(R"({"type":"WordLevel",)" + vocab + "}", "", config);
  const std::vector<int32_t> ids = {0, 1, 2, 3, 2, 4, 2, 4, 3, 2};
  EXPECT_EQ(words->decode(ids), "don't go. go'go '. go");
  DetokenizeStream stream(*words);
  std::string streamed;
  for (const int32_t id : ids) streamed += stream.push(id);
  EXPECT_EQ(streamed + stream.flush(), words->decode(ids));
  const auto bpe = make(R"({"type":"BPE","merges":[],)" + vocab + "}", "", config);
  EXPECT_EQ(bpe->decode(std::vector<int32_t>{2, 3}), "go .");
}

TEST(Tokenizer, StreamsCharactersOnlyWhole) {
  const auto tokenizer = make(R"({"type":"BPE","vocab":{"ð":0,"Ł":1,"ĺ":2,"Ģ":3,"a":4},"merges":[]})",
                              R"("decoder":{"type":"ByteLevel"})");
  DetokenizeStream stream(*tokenizer);
  EXPECT_EQ(stream.push(4), "a");
  EXPECT_EQ(stream.push(0), "");
  EXPECT_EQ(stream.push(1), "");
  EXPECT_EQ(stream.push(2), "");
  EXPECT_EQ(stream.push(3), "\xF0\x9F\x98\x80");
  EXPECT_EQ(stream.push(0), "");
  EXPECT_EQ(stream.push(4),
            "\xEF\xBF\xBD"
            "a");
  EXPECT_EQ(stream.push(0), "");
  EXPECT_EQ(stream.flush(), "\xEF\xBF\xBD");
}

TEST(Tokenizer, StreamOfRandomIdsEqualsDecodingThem) {
  const std::string decoders[] = {
      R"({"type":"ByteLevel"})",
      R"({"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"_"},"content":" "},{"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]})",
      R"({"type":"Sequence","decoders":[{"type":"ByteFallback"},{"type":"Metaspace","replacement":"_","prepend_scheme":"always"}]})",
      R"({"type":"WordPiece","prefix":"##","cleanup":true})",
      R"({"type":"BPEDecoder","suffix":"</w>"})",
      R"({"type":"Sequence","decoders":[{"type":"Fuse"},{"type":"Replace","pattern":{"Regex":"a_|_a"},"content":"-"},{"type":"Strip","content":"x","start":0,"stop":2}]})",
      "null"};
  const std::string model =
      R"({"type":"BPE","merges":[],"vocab":{"_":0,"a":1,"##b":2,"c</w>":3,"<0xE2>":4,"<0x82>":5,"<0xAC>":6,"â":7,"Ĥ":8,"¬":9,"x":10," ":11,"Ġ":12}})";
  std::mt19937 random(7);
  for (const std::string& decoder : decoders) {
    const auto tokenizer = make(model, "\"decoder\":" + decoder);
    for (int round = 0; round < 300; ++round) {
      std::vector<int32_t> ids(random() % 12);
      for (int32_t& id : ids) id = static_cast<int32_t>(random() % 13);
      DetokenizeStream stream(*tokenizer);
      std::string text;
      for (const int32_t id : ids) {
        const std::string part = stream.push(id);
        ASSERT_TRUE(is_valid_utf8(part)) << decoder;
        text += part;
      }
      ASSERT_EQ(text + stream.flush(), tokenizer->decode(ids)) << decoder;
    }
  }
}

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

TEST(Tokenizer, EncodesLongWordsInLinearithmicTime) {
  const auto tokenizer =
      make(R"({"type":"BPE","vocab":{"a":0,"aa":1,"aaaa":2,"aaaaaaaa":3},"merges":["a a","aa aa","aaaa aaaa"]})");
  const std::string word(1'000'000, 'a');
  std::vector<int32_t> ids;
  // A quadratic merge loop takes minutes here.
  EXPECT_LT(seconds_of([&] { ids = tokenizer->encode(word).value(); }), 20.0);
  EXPECT_EQ(ids, std::vector<int32_t>(125'000, 3));
}

TEST(Tokenizer, FailsWhereTheSplitExpressionRunsAway) {
  const auto tokenizer = make(
      kAbc, R"("pre_tokenizer":{"type":"Split","pattern":{"Regex":"(a|aa)+$|(?=(a+)+c)x"},"behavior":"Isolated"})");
  Result<std::vector<int32_t>> result;
  EXPECT_LT(seconds_of([&] { result = tokenizer->encode(std::string(5000, 'a') + "b"); }), 60.0);
  ASSERT_FALSE(result);
  expect_has(result.error().message, "(a|aa)+$");
}

TEST(Tokenizer, FailsWhereReplacementsExplode) {
  std::string steps;
  for (int i = 0; i < 60; ++i)
    steps += std::string(i == 0 ? "" : ",") + R"({"type":"Replace","pattern":{"String":"a"},"content":"aa"})";
  const auto tokenizer = make(kAbc, R"("normalizer":{"type":"Sequence","normalizers":[)" + steps + "]}");
  EXPECT_FALSE(tokenizer->encode("a"));
}

TEST(Tokenizer, GivesTheSameFromManyThreads) {
  const auto tokenizer = make(kAbc, R"("pre_tokenizer":{"type":"Whitespace"})");
  std::string text;
  for (int i = 0; i < 2000; ++i) text += std::string(i % 3 == 0 ? "abc " : "cab ") + (i % 7 == 0 ? "ab" : "");
  const std::vector<int32_t> expected = tokenizer->encode(text).value();
  std::vector<std::thread> threads;
  std::vector<int> same(4);
  for (size_t i = 0; i < same.size(); ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < 20; ++round) same[i] += tokenizer->encode(text).value() == expected;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(same, std::vector<int>(4, 20));
}

TEST(Tokenizer, TellsTheBytesOfTokens) {
  const auto letters =
      make(R"({"type":"BPE","vocab":{"Ġa":0,"Ã©":1},"merges":[]})", R"("pre_tokenizer":{"type":"ByteLevel"})");
  EXPECT_EQ(letters->token_bytes(0), " a");
  EXPECT_EQ(letters->token_bytes(1), "\xC3\xA9");
  EXPECT_EQ(letters->id_to_token(0), "Ġa");
  EXPECT_EQ(letters->token_to_id("Ã©"), 1);
  const auto fallback = make(R"({"type":"BPE","vocab":{"<0x0A>":0,"▁b":1},"merges":[]})");
  EXPECT_EQ(fallback->token_bytes(0), "\n");
  EXPECT_EQ(fallback->token_bytes(1), " b");
}

}  // namespace
}  // namespace coluber
