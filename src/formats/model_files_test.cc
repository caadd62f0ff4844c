// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "base/error.h"
#include "formats/generation_config.h"
#include "formats/model_folder.h"
#include "formats/safetensors.h"
#include "formats/temporary_folder_test.h"
#include "formats/weight_source.h"
#include "tensor/tensor_convert.h"

namespace coluber {
namespace {

template <typename Action>
Error error_of(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "did not throw";
  return Error(ErrorCode::kOk, "");
}

bool tells(const Error& error, const std::string& text) {
  if (std::string(error.what()).find(text) != std::string::npos) return true;
  ADD_FAILURE() << error.what() << "\ndoes not tell: " << text;
  return false;
}

void write_shard(const std::string& path, const std::vector<std::pair<std::string, float>>& tensors) {
  std::vector<SafetensorsOutput> outputs;
  for (const auto& [name, value] : tensors) {
    outputs.push_back(SafetensorsOutput::from_view(name, TensorView::contiguous(&value, DType::kFloat32, Shape{1})));
  }
  write_safetensors(path, outputs);
}

class ModelFolders : public testing::Test, public TemporaryFolder {};

TEST_F(ModelFolders, AFolderOrAFileInItNamesTheModel) {
  write("config.json", "{}");
  write("model.safetensors", "");
  write("other.safetensors", "");
  write("tokenizer.json", "{}");
  EXPECT_EQ(resolve_model(folder()).config_path, at("config.json"));
  EXPECT_EQ(resolve_model(folder() + "/").config_path, at("config.json"));
  EXPECT_EQ(resolve_model(folder()).weights_path, folder());
  EXPECT_EQ(resolve_model(at("other.safetensors")).weights_path, at("other.safetensors"));
  EXPECT_EQ(resolve_model(at("other.safetensors")).config_path, at("config.json"));
  EXPECT_EQ(resolve_model(at("config.json")).weights_path, folder());
  EXPECT_EQ(resolve_model(at("tokenizer.json")).tokenizer_path, at("tokenizer.json"));
}

TEST_F(ModelFolders, ATokenizerAloneIsEnoughWhereOnlyThatIsNeeded) {
  write("tokenizer.json", "{}");
  write("special.json", "{}");
  EXPECT_EQ(resolve_model(folder(), ModelNeeds::kTokenizer).tokenizer_path, at("tokenizer.json"));
  EXPECT_EQ(resolve_model(at("special.json"), ModelNeeds::kTokenizer).tokenizer_path, at("special.json"));
  EXPECT_TRUE(tells(error_of([&] { resolve_model(folder()); }), "has no config.json"));
}

TEST_F(ModelFolders, WhatIsNotThereIsToldWithWhatIs) {
  const Error missing = error_of([&] { resolve_model(at("nothing")); });
  EXPECT_EQ(missing.code(), ErrorCode::kNotFound);
  EXPECT_TRUE(tells(missing, "there is no model at '" + at("nothing") + "'"));
  EXPECT_TRUE(tells(error_of([&] { resolve_model(folder()); }), "it holds nothing"));
  for (int i = 10; i < 30; ++i) write("file" + std::to_string(i), "");
  EXPECT_TRUE(tells(error_of([&] { resolve_model(folder()); }), "file10, file11"));
  EXPECT_TRUE(tells(error_of([&] { resolve_model(folder()); }), "and 8 more"));
  EXPECT_TRUE(tells(error_of([&] { resolve_model(folder(), ModelNeeds::kTokenizer); }), "neither tokenizer.json"));
  EXPECT_EQ(error_of([&] { resolve_model(""); }).code(), ErrorCode::kInvalidArgument);
  write("model.npz", "");
  EXPECT_EQ(error_of([&] { resolve_model(at("model.npz")); }).code(), ErrorCode::kUnsupported);
}

TEST_F(ModelFolders, WeightsMayComeWithoutAConfig) {
  write("RWKV-tiny.pth", "");
  EXPECT_EQ(resolve_model(folder()).config_path, "");
  EXPECT_EQ(resolve_model(folder()).weights_path, folder());
  EXPECT_EQ(resolve_model(at("RWKV-tiny.pth")).config_path, "");
  EXPECT_EQ(resolve_model(at("RWKV-tiny.pth")).weights_path, at("RWKV-tiny.pth"));
  write("config.json", "{}");
  EXPECT_EQ(resolve_model(at("RWKV-tiny.pth")).config_path, at("config.json"));
}

TEST_F(ModelFolders, TokenizersOfOtherFormsAreFoundWhereThereIsNoTokenizerJson) {
  write("config.json", "{}");
  EXPECT_EQ(resolve_model(folder()).tokenizer_path, at("tokenizer.json"));
  for (const char* name : {"tiktoken.model", "tokenizer.model", "rwkv_vocab_v20230424.txt", "rwkv_vocab_v20240101.txt",
                           "tokenizer.json"}) {
    write(name, "");
    EXPECT_EQ(resolve_model(folder()).tokenizer_path, at(name));
  }
  EXPECT_EQ(resolve_model(at("tiktoken.model"), ModelNeeds::kTokenizer).tokenizer_path, at("tiktoken.model"));
}

class WeightSources : public testing::Test, public TemporaryFolder {};

TEST_F(WeightSources, OneFileIsRead) {
  write_shard(at("model.safetensors"), {{"b", 2}, {"a", 1}});
  for (const std::string& path : {folder(), at("model.safetensors")}) {
    const std::unique_ptr<WeightSource> source = open_weights(path);
    EXPECT_EQ(source->names(), (std::vector<std::string>{"a", "b"}));
    EXPECT_EQ(to_float_vector(source->get("b")), std::vector<float>{2});
    EXPECT_TRUE(source->contains("a"));
    EXPECT_FALSE(source->contains("c"));
    EXPECT_EQ(source->describe(), at("model.safetensors"));
    const Error missing = error_of([&] { source->get("c"); });
    EXPECT_EQ(missing.code(), ErrorCode::kNotFound);
    EXPECT_TRUE(tells(missing, at("model.safetensors")));
  }
}

TEST_F(WeightSources, ShardsAreReadThroughTheirIndex) {
  write_shard(at("one.safetensors"), {{"a", 1}, {"not in the index", 9}});
  write_shard(at("two.safetensors"), {{"b", 2}, {"c", 3}});
  write(
      "model.safetensors.index.json",
      R"({"metadata":{"total_size":12},"weight_map":{"a":"one.safetensors","c":"two.safetensors","b":"two.safetensors"}})");
  for (const std::string& path : {folder(), at("model.safetensors.index.json")}) {
    const FileWeights source(path);
    EXPECT_EQ(source.names(), (std::vector<std::string>{"a", "b", "c"}));
    EXPECT_EQ(to_float_vector(source.get("c")), std::vector<float>{3});
    EXPECT_EQ(source.files().size(), 2U);
    source.release(source.get("a"));
    EXPECT_EQ(to_float_vector(source.get("a")), std::vector<float>{1});
  }
}

TEST_F(WeightSources, AnIndexThatLiesIsRefused) {
  write_shard(at("one.safetensors"), {{"a", 1}});
  const auto refusal = [&](const std::string& index) {
    write("model.safetensors.index.json", index);
    return error_of([&] { open_weights(folder()); });
  };
  EXPECT_TRUE(tells(refusal(R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})"), "\"two.safetensors\""));
  EXPECT_TRUE(
      tells(refusal(R"({"weight_map":{"a":"one.safetensors","b":"one.safetensors"}})"), "\"b\" in one.safetensors"));
  EXPECT_TRUE(tells(refusal(R"({"weight_map":{"a":"../one.safetensors"}})"), "a file in the same folder"));
  EXPECT_TRUE(tells(refusal(R"({"weight_map":{"a":"/etc/passwd"}})"), "a file in the same folder"));
  EXPECT_TRUE(tells(refusal(R"({"weight_map":{"a":3}})"), "found 3"));
  EXPECT_TRUE(tells(refusal(R"({"weight_map":{}})"), "an empty one"));
  EXPECT_TRUE(tells(refusal(R"({})"), "found none"));
  EXPECT_TRUE(tells(refusal("{"), "not valid JSON"));
}

TEST_F(WeightSources, AFolderWithoutWeightsSaysWhatItHolds) {
  write("weights.npz", "");
  const Error error = error_of([&] { open_weights(folder()); });
  EXPECT_EQ(error.code(), ErrorCode::kNotFound);
  EXPECT_TRUE(tells(error, "weights.npz"));
}

TEST_F(WeightSources, PublishedCheckpointsAreRead) {
  const std::filesystem::path golden = std::filesystem::path(COLUBER_SOURCE_DIR) / "../shared/golden";
  if (!std::filesystem::is_directory(golden)) GTEST_SKIP() << "no reference checkpoints beside this tree";
  int read = 0;
  for (const auto& item : std::filesystem::directory_iterator(golden)) {
    if (!find_weights(item.path().string())) continue;
    const std::unique_ptr<WeightSource> source = open_weights(item.path().string());
    for (const std::string& name : source->names()) source->get(name);
    EXPECT_FALSE(source->names().empty()) << item.path();
    ++read;
  }
  EXPECT_GT(read, 0);
}

class GenerationConfigs : public testing::Test, public TemporaryFolder {};

TEST_F(GenerationConfigs, AFileThatIsNotThereIsFine) {
  const GenerationConfig config = read_generation_config(at("generation_config.json"));
  EXPECT_TRUE(config.eos_token_id.empty());
  EXPECT_EQ(config.temperature, std::nullopt);
}

TEST_F(GenerationConfigs, ValuesAreRead) {
  write("g.json",
        R"({"eos_token_id":[2,7],"bos_token_id":1,"do_sample":true,"temperature":0.7,"top_k":20,"top_p":0.8,"min_p":0,
                      "repetition_penalty":1.05,"pad_token_id":null,"transformers_version":"5"})");
  const GenerationConfig config = read_generation_config(at("g.json"));
  EXPECT_EQ(config.eos_token_id, (std::vector<int64_t>{2, 7}));
  EXPECT_EQ(config.bos_token_id, 1);
  EXPECT_EQ(config.pad_token_id, std::nullopt);
  EXPECT_EQ(config.do_sample, true);
  EXPECT_EQ(config.temperature, 0.7);
  EXPECT_EQ(config.top_k, 20);
  EXPECT_EQ(config.top_p, 0.8);
  EXPECT_EQ(config.min_p, 0.0);
  EXPECT_EQ(config.repetition_penalty, 1.05);
  write("one.json", R"({"eos_token_id":2})");
  EXPECT_EQ(read_generation_config(at("one.json")).eos_token_id, std::vector<int64_t>{2});
}

TEST_F(GenerationConfigs, WrongTypesAreReportedTogether) {
  write("g.json", R"({"eos_token_id":"</s>","temperature":"hot","top_p":1.5})");
  const Error error = error_of([&] { read_generation_config(at("g.json")); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidConfig);
  EXPECT_TRUE(tells(error, "3 problems"));
  EXPECT_TRUE(tells(error, at("g.json")));
}

}  // namespace
}  // namespace coluber
