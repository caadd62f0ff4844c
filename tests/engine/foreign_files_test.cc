// SPDX-License-Identifier: Apache-2.0
//
// A model that is one .pth file and a vocabulary beside it: no config.json, no tokenizer.json.
#include <gtest/gtest.h>

#include <filesystem>

#include "families.h"
#include "formats/temporary_folder_test.h"

namespace coluber {
namespace {

class BareFile : public testing::Test, public TemporaryFolder {
 protected:
  void SetUp() override { add("rwkv7_pth/RWKV-x070-tiny.pth"); }
  void add(const std::string& file) const {
    const std::filesystem::path source = std::filesystem::path(COLUBER_SOURCE_DIR) / "tests/data" / file;
    std::filesystem::copy_file(source, at(source.filename().string()));
  }
  static std::unique_ptr<Engine> load(const std::string& path) {
    EngineOptions options;
    options.model = path;
    options.num_threads = 1;
    return Engine::load(options);
  }
  static std::vector<float> logits_of(const std::string& path) {
    const auto engine = load(path);
    return families::logits_of(*engine->open_session(), families::prompt_of(12));
  }
};

TEST_F(BareFile, TheFileAndItsFolderNameTheSameModel) {
  EXPECT_EQ(logits_of(folder()), logits_of(at("RWKV-x070-tiny.pth")));
  EXPECT_FALSE(load(folder())->has_tokenizer());
  EXPECT_TRUE(load(folder())->eos_token_ids().empty());
}

TEST_F(BareFile, TheVocabularyBesideItTellsItsTextAndItsEnd) {
  add("tokenizers/rwkv_world/rwkv_vocab_v20230424.txt");
  const auto engine = load(folder());
  ASSERT_TRUE(engine->has_tokenizer());
  EXPECT_EQ(std::vector<int32_t>(engine->eos_token_ids().begin(), engine->eos_token_ids().end()),
            std::vector<int32_t>{0});
  EXPECT_EQ(engine->encode(" !\n"), (std::vector<int32_t>{268, 11})) << "the longest token first";
  EXPECT_EQ(engine->decode(std::vector<int32_t>{34, 0, 34}), "!!");
}

TEST_F(BareFile, OfTwoFilesOneMustBeNamed) {
  add("rwkv6/RWKV-x060-tiny.pth");
  try {
    load(folder());
    ADD_FAILURE() << "one of two was chosen";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNotFound);
    for (const char* part : {"RWKV-x060-tiny.pth", "RWKV-x070-tiny.pth", "the one .pth file"})
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << part << " in: " << error.what();
  }
  EXPECT_EQ(load(at("RWKV-x060-tiny.pth"))->model_info().architecture, "rwkv6");
  EXPECT_EQ(load(at("RWKV-x070-tiny.pth"))->model_info().architecture, "rwkv7");
}

}  // namespace
}  // namespace coluber
