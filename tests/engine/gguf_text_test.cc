// SPDX-License-Identifier: Apache-2.0
//
// Tokenizers and chat templates inside GGUF files (tests/data/gguf) against those that the files were made from.
#include <gtest/gtest.h>

#include "base/json.h"
#include "base/mapped_file.h"
#include "engine/model_text.h"
#include "families.h"
#include "formats/temporary_folder_test.h"
#include "text/tokenizer/stored_vocabulary.h"

namespace coluber {
namespace {

std::string data(const std::string& path) { return std::string(COLUBER_SOURCE_DIR) + "/tests/data/" + path; }
std::string fixture(const std::string& name) { return data("gguf/tokenizer." + name + ".gguf"); }

std::unique_ptr<Tokenizer> tokenizer_of(const std::string& path) {
  return load_tokenizer(resolve_model(path, ModelNeeds::kTokenizer));
}

std::vector<int32_t> ids_in(const Json& json) {
  std::vector<int32_t> ids;
  for (const Json& id : json.as_array()) ids.push_back(static_cast<int32_t>(id.as_int()));
  return ids;
}

// Added tokens that take spaces with them, stand alone or are found in normalized text: GGUF cannot say that.
bool has_inexpressible_token(const std::string& name, const std::string& text) {
  if (name != "bpe_qwen" && name != "bpe_llama3") return false;
  for (const char* token : {"<mask>", "<tool>", "<r>", "caf\xC3\xA9", "cafe\xCC\x81"})
    if (text.find(token) != std::string::npos) return true;
  return false;
}

class GgufTokenizer : public testing::TestWithParam<const char*> {};

TEST_P(GgufTokenizer, GivesTheIdsOfItsOrigin) {
  const auto tokenizer = tokenizer_of(fixture(GetParam()));
  const Json cases = read_json_file(data("tokenizers/") + GetParam() + "/cases.json");
  int compared = 0;
  for (const Json& one : cases.at("cases").as_array()) {
    const std::string& text = one.at("text").as_string();
    if (has_inexpressible_token(GetParam(), text)) continue;
    SCOPED_TRACE(Json(text).dump());
    ++compared;
    EXPECT_EQ(tokenizer->encode(text, false).value(), ids_in(one.at("ids")));
    EXPECT_EQ(tokenizer->encode(text, true).value(), ids_in(one.at("ids_with_special")));
    EXPECT_EQ(tokenizer->decode(ids_in(one.at("ids")), false), one.at("decoded").as_string());
    EXPECT_EQ(tokenizer->decode(ids_in(one.at("ids_with_special")), true), one.at("decoded_skip_special").as_string());
  }
  EXPECT_GE(compared, 160);
}

INSTANTIATE_TEST_SUITE_P(Origins, GgufTokenizer,
                         testing::Values("bpe_llama3", "bpe_qwen", "bpe_gpt2", "bpe_falcon", "sp_bpe"),
                         [](const auto& info) { return std::string(info.param); });

TEST(GgufText, NamesItsSpecialTokens) {
  const auto tokenizer = tokenizer_of(fixture("bpe_llama3"));
  EXPECT_EQ(tokenizer->bos_token(), "<|begin_of_text|>");
  EXPECT_EQ(tokenizer->eos_id(), 4);
  EXPECT_TRUE(tokenizer->is_special(4));
  EXPECT_FALSE(tokenizer->is_special(tokenizer->token_to_id("<think>").value()));
  EXPECT_FALSE(tokenizer->contains(1000)) << "it only fills the table";
}

TEST(GgufText, RendersItsChatTemplate) {
  const auto templates = find_chat_template(resolve_model(fixture("bpe_llama3")));
  ASSERT_TRUE(templates);
  const Json variables = value_or_throw(parse_json(R"({"messages": [{"role": "user", "content": "Hi"}]})", "test"));
  EXPECT_EQ(value_or_throw(templates->render(variables)), "<|begin_of_text|><user>Hi");
  EXPECT_FALSE(find_chat_template(resolve_model(fixture("bpe_qwen"))));
}

TEST(GgufText, FilesBesideItComeFirst) {
  const TemporaryFolder folder;
  std::filesystem::copy_file(fixture("bpe_qwen"), folder.at("x.gguf"));
  EXPECT_EQ(tokenizer_of(folder.folder())->eos_token(), "");
  std::filesystem::copy_file(data("tokenizers/bpe_llama3/tokenizer.json"), folder.at("tokenizer.json"));
  EXPECT_TRUE(tokenizer_of(folder.at("x.gguf"))->token_to_id("<|begin_of_text|>"));
}

TEST(GgufText, AModelWithoutATokenizerTakesIds) {
  const ModelFolder model = resolve_model(data("gguf/lfm2.Q4_0.gguf"));
  EXPECT_EQ(find_tokenizer(model), nullptr);
  EXPECT_THROW(load_tokenizer(model), Error);
}

// A vocabulary that is right, for tests that make it wrong.
struct Lists {
  std::vector<std::string_view> tokens{"a", "b", "ab", "</s>"}, merges{"a b"};
  std::vector<double> scores{0, 0, -1, 0};
  std::vector<int64_t> types{1, 1, 1, 3};
  StoredVocabulary vocabulary(std::string_view model = "gpt2") const {
    StoredVocabulary v;
    v.model = model;
    v.split = "gpt-2";
    v.tokens = tokens;
    v.merges = merges;
    v.scores = scores;
    v.types = types;
    v.eos_id = 3;
    return v;
  }
};

std::string refusal_of(const StoredVocabulary& vocabulary) {
  try {
    Tokenizer::from_vocabulary(vocabulary, "x.gguf");
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

void expect_refused(const StoredVocabulary& vocabulary, const std::string& part) {
  const std::string message = refusal_of(vocabulary);
  EXPECT_NE(message.find("x.gguf"), std::string::npos) << message;
  EXPECT_NE(message.find(part), std::string::npos) << "\"" << part << "\" is not in: " << message;
}

TEST(StoredVocabulary, ARightOneIsRead) {
  const Lists lists;
  const auto tokenizer = Tokenizer::from_vocabulary(lists.vocabulary(), "x.gguf");
  EXPECT_EQ(tokenizer->encode("ab</s>").value(), (std::vector<int32_t>{2, 3}));
}

TEST(StoredVocabulary, UnknownKindsAreNamed) {
  const Lists lists;
  StoredVocabulary v = lists.vocabulary();
  v.split = "made-up";
  expect_refused(v, "'made-up'");
  expect_refused(v, "qwen2");
  expect_refused(lists.vocabulary("bert"), "'bert'");
}

// A file may call a token unused and put it around every text all the same.
TEST(StoredVocabulary, WhatStandsAroundTextsIsInTheVocabulary) {
  for (const char* model : {"gpt2", "llama", "t5"}) {
    Lists lists;
    lists.tokens.insert(lists.tokens.begin(), "<s>");
    lists.scores.insert(lists.scores.begin(), 0);
    lists.types = {5, 1, 1, 1, 5};
    StoredVocabulary v = lists.vocabulary(model);
    v.bos_id = 0;
    v.eos_id = 4;
    v.add_bos = v.add_eos = true;
    v.add_space_prefix = false;
    const auto tokenizer = Tokenizer::from_vocabulary(v, "x.gguf");
    const auto encoded = tokenizer->encode("ab");
    ASSERT_TRUE(encoded) << model << ": " << encoded.error().message;
    const std::vector<int32_t>& ids = *encoded;
    EXPECT_EQ(ids.front(), 0) << model;
    EXPECT_EQ(ids.back(), 4) << model;
    for (const int32_t id : ids) EXPECT_TRUE(tokenizer->contains(id)) << model << " " << id;
    EXPECT_EQ(tokenizer->token_bytes(0), "<s>") << model;
    EXPECT_EQ(tokenizer->decode(ids, true), "ab") << model;
  }
}

TEST(StoredVocabulary, ListsThatDoNotFitAreRefused) {
  Lists lists;
  StoredVocabulary v = lists.vocabulary();
  v.types = v.types.first(2);
  expect_refused(v, "a type for each of 4 tokens, found 2");
  v = lists.vocabulary("llama");
  v.scores = {};
  expect_refused(v, "a score for each of 4 tokens, found 0");
  v = lists.vocabulary();
  v.eos_id = 4;
  expect_refused(v, "the eos token has the id 4");
  v = lists.vocabulary();
  v.add_bos = true;
  expect_refused(v, "names none");
  v = lists.vocabulary();
  v.tokens = {};
  expect_refused(v, "no tokens");
  lists.types[1] = 9;
  expect_refused(lists.vocabulary(), "the type 9");
  lists.types[1] = 1;
  lists.tokens[1] = "\xFF";
  expect_refused(lists.vocabulary(), "token 1 is not UTF-8");
  lists.tokens[1] = "b";
  lists.merges[0] = "a c";
  expect_refused(lists.vocabulary(), "merges[0]");
}

}  // namespace
}  // namespace coluber
