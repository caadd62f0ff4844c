// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/vocabulary_export.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "text/tokenizer/tokenizer.h"

namespace coluber {
namespace {

std::string data(const std::string& name) { return std::string(COLUBER_SOURCE_DIR) + "/tests/data/tokenizers/" + name; }

std::vector<std::string_view> views_of(const std::vector<std::string>& texts) { return {texts.begin(), texts.end()}; }

std::string refusal_of(const std::string& path, int64_t size) {
  try {
    export_vocabulary(path, size);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

struct Case {
  const char* file;
  int64_t size;
  const char *model, *split, *written_as;
};

class VocabularyExport : public testing::TestWithParam<Case> {};

TEST_P(VocabularyExport, SaysTheSameThereAndBack) {
  const Case& one = GetParam();
  const auto original = Tokenizer::load(data(one.file));
  const ExportedVocabulary lists = export_vocabulary(data(one.file), one.size);
  EXPECT_EQ(lists.model, one.model);
  EXPECT_EQ(lists.split, one.split);
  ASSERT_EQ(static_cast<int64_t>(lists.tokens.size()), one.size);
  EXPECT_EQ(lists.types.size(), lists.tokens.size());
  const auto tokens = views_of(lists.tokens), merges = views_of(lists.merges);
  StoredVocabulary stored;
  stored.model = lists.model;
  stored.split = lists.split;
  stored.tokens = tokens;
  stored.merges = merges;
  stored.scores = lists.scores;
  stored.types = lists.types;
  stored.bos_id = lists.bos_id;
  stored.eos_id = lists.eos_id;
  stored.unk_id = lists.unk_id;
  stored.pad_id = lists.pad_id;
  stored.add_bos = lists.add_bos;
  stored.add_eos = lists.add_eos;
  stored.add_space_prefix = lists.add_space_prefix.value_or(true);
  stored.remove_extra_spaces = lists.remove_extra_spaces.value_or(false);
  const TokenizerFiles files = tokenizer_files(stored, "lists");
  EXPECT_EQ(files.name, one.written_as);
  const auto again = files.name == "tokenizer.json"
                         ? Tokenizer::from_json(files.content, files.config.dump(), files.name)
                         : Tokenizer::from_file_bytes(files.content, files.config.dump(), files.name);
  const auto between = Tokenizer::from_vocabulary(stored, "lists");
  for (const char* text :
       {"", "a", "Hello world", "  two  spaces ", "1234 \xD0\xBF\xD1\x80 \xE4\xBD\xA0\n\n", "it's"}) {
    for (const bool special : {false, true}) {
      const auto expected = original->encode(text, special).value();
      EXPECT_EQ(between->encode(text, special).value(), expected) << text;
      EXPECT_EQ(again->encode(text, special).value(), expected) << text;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, VocabularyExport,
                         testing::Values(Case{"bpe_llama3/tokenizer.json", 1024, "gpt2", "llama-bpe", "tokenizer.json"},
                                         Case{"bpe_qwen/tokenizer.json", 1024, "gpt2", "qwen2", "tokenizer.json"},
                                         Case{"bpe_falcon/tokenizer.json", 512, "gpt2", "falcon", "tokenizer.json"},
                                         Case{"bpe_sp/tokenizer.json", 1024, "llama", "default", "tokenizer.model"},
                                         Case{"sp_bpe/tokenizer.model", 1024, "llama", "default", "tokenizer.model"},
                                         Case{"rwkv_world/rwkv_vocab_v20230424.txt", 65536, "rwkv", "",
                                              "rwkv_vocab_v20230424.txt"}));

TEST(VocabularyExportRefusals, NameWhatGgufHasNoWordsFor) {
  EXPECT_NE(refusal_of(data("bpe_qwen/tokenizer.json"), 100).find("beyond the model's 100 tokens"), std::string::npos);
  EXPECT_NE(refusal_of(data("unigram/tokenizer.json"), 1024).find("only BPE"), std::string::npos);
  EXPECT_NE(refusal_of(data("tiktoken/tiktoken.model"), 1 << 17).find("cannot be written"), std::string::npos);
}

}  // namespace
}  // namespace coluber
