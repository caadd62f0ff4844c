// SPDX-License-Identifier: Apache-2.0
//
// Every component and option against what PyPI's `tokenizers` made of the same texts: our own small tokenizers
// (testdata/components.json), and the golden folders where they are.
#include <gtest/gtest.h>

#include <filesystem>

#include "base/json.h"
#include "base/mapped_file.h"
#include "base/utf8.h"
#include "text/tokenizer/tokenizer.h"

namespace coluber {
namespace {

std::string source_path(const std::string& path) { return std::string(COLUBER_SOURCE_DIR) + "/" + path; }

std::vector<int32_t> ids_of(const Json& json) {
  std::vector<int32_t> ids;
  for (const Json& id : json.as_array()) ids.push_back(static_cast<int32_t>(id.as_int()));
  return ids;
}

std::string stream_text(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, bool skip) {
  DetokenizeStream stream(tokenizer, skip);
  std::string text;
  for (const int32_t id : ids) {
    const std::string part = stream.push(id);
    EXPECT_TRUE(is_valid_utf8(part)) << "half a character";
    text += part;
  }
  return text + stream.flush();
}

void check_cases(const Tokenizer& tokenizer, const Json& cases, const std::string& name) {
  for (const Json& one : cases.as_array()) {
    const std::string& text = one.at("text").as_string();
    SCOPED_TRACE(name + ": " + Json(text).dump());
    const std::vector<int32_t> ids = ids_of(one.at("ids"));
    const std::vector<int32_t> special = ids_of(one.at("ids_with_special"));
    const auto plain = tokenizer.encode(text, false);
    ASSERT_TRUE(plain) << plain.error().message;
    EXPECT_EQ(*plain, ids);
    EXPECT_EQ(tokenizer.encode(text, true).value(), special);
    EXPECT_EQ(tokenizer.decode(ids, false), one.at("decoded").as_string());
    EXPECT_EQ(tokenizer.decode(special, true), one.at("decoded_skip_special").as_string());
    EXPECT_EQ(stream_text(tokenizer, ids, false), one.at("decoded").as_string());
    EXPECT_EQ(stream_text(tokenizer, special, true), one.at("decoded_skip_special").as_string());
  }
}

TEST(TokenizerComponents, AgreeWithTheReference) {
  const Json data = read_json_file(source_path("src/text/tokenizer/testdata/components.json"));
  EXPECT_GE(data.at("entries").as_array().size(), 60u);
  for (const Json& entry : data.at("entries").as_array()) {
    const std::string& name = entry.at("name").as_string();
    const auto tokenizer = Tokenizer::from_json(entry.at("tokenizer").dump(), {}, name);
    check_cases(*tokenizer, entry.at("cases"), name);
  }
}

// The files of tokenizers with a cases.json beside them; an empty list where there are none.
std::vector<std::string> golden_files() {
  std::vector<std::string> files;
  for (const char* place : {"tests/data/tokenizers", "../shared/golden/tokenizers"}) {
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(source_path(place), ignored)) {
      const std::string path = entry.path().string();
      if (!file_exists(path + "/cases.json")) continue;
      const size_t before = files.size();
      for (const char* name : {"tokenizer.json", "tokenizer.model", "tiktoken.model", "rwkv_vocab_v20230424.txt"}) {
        if (file_exists(path + "/" + name)) files.push_back(path + "/" + name);
      }
      EXPECT_GT(files.size(), before) << path << " has cases and no tokenizer";
    }
  }
  return files;
}

TEST(TokenizerGolden, CasesAgree) {
  const std::vector<std::string> files = golden_files();
  if (files.empty()) GTEST_SKIP() << "neither tests/data/tokenizers nor ../shared/golden/tokenizers is there";
  for (const std::string& file : files) {
    const auto tokenizer = Tokenizer::load(file);
    const std::string folder = file.substr(0, file.find_last_of('/'));
    check_cases(*tokenizer, read_json_file(folder + "/cases.json").at("cases"), folder);
  }
}

TEST(TokenizerGolden, BuiltInModelGivesItsExpectedPromptIds) {
  for (const char* place : {"models/asp-7m", "../shared/model/asp-7m"}) {
    const std::string folder = source_path(place);
    if (!file_exists(folder + "/tokenizer.json") || !file_exists(folder + "/expected.json")) continue;
    const auto tokenizer = Tokenizer::load(folder);
    const Json expected = read_json_file(folder + "/expected.json");
    for (const auto& [name, one] : expected.at("cases").as_object()) {
      if (one.find("prompt") == nullptr || one.find("prompt_ids") == nullptr) continue;
      EXPECT_EQ(tokenizer->encode(one.at("prompt").as_string()).value(), ids_of(one.at("prompt_ids"))) << name;
      EXPECT_EQ(tokenizer->decode(ids_of(one.at("greedy_ids")), false), one.at("greedy_text").as_string()) << name;
    }
    return;
  }
  GTEST_SKIP() << "neither models/asp-7m nor ../shared/model/asp-7m is there";
}

}  // namespace
}  // namespace coluber
