// SPDX-License-Identifier: Apache-2.0
#include "formats/gguf_mix.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "base/error.h"

namespace coluber {
namespace {

// Types by name, of a model of eight layers.
std::map<std::string, std::string> types_of(const char* mix, const std::vector<GgufMixTensor>& tensors,
                                            int64_t num_experts = 0) {
  const std::vector<DType> types = choose_gguf_types(*find_gguf_mix(mix), tensors, 8, num_experts);
  std::map<std::string, std::string> named;
  for (size_t i = 0; i < tensors.size(); ++i) named[std::string(tensors[i].name)] = dtype_name(types[i]);
  return named;
}

TEST(GgufMix, MatricesGetTheTypeAndWhatIsSmallStaysFloat32) {
  const std::vector<GgufMixTensor> tensors = {
      {"token_embd.weight", {512, 256}},       {"output.weight", {512, 256}},
      {"output_norm.weight", {256}},           {"blk.0.ssm_in.weight", {512, 256}},
      {"blk.0.ssm_conv1d.weight", {512, 4}},   {"blk.0.ssm_a", {512, 16}},
      {"blk.0.ssm_norm.weight", {2, 256}},     {"blk.0.ffn_gate_inp.weight", {8, 256}},
      {"blk.0.time_mix_g1.weight", {32, 256}}, {"blk.0.ffn_down_exps.weight", {4, 256, 512}}};
  for (const GgufMix& mix : gguf_mixes()) {
    auto types = types_of(std::string(mix.name).c_str(), tensors);
    for (const char* small : {"output_norm.weight", "blk.0.ssm_conv1d.weight", "blk.0.ssm_a", "blk.0.ssm_norm.weight",
                              "blk.0.ffn_gate_inp.weight"})
      EXPECT_EQ(types[small], "float32") << mix.name << " " << small;
    EXPECT_EQ(types["blk.0.ssm_in.weight"], mix.type) << mix.name;
  }
  EXPECT_EQ(types_of("q4_0", tensors)["output.weight"], "Q6_K");
  EXPECT_EQ(types_of("q8_0", tensors)["output.weight"], "Q8_0");
  EXPECT_EQ(types_of("q8_0", tensors)["blk.0.time_mix_g1.weight"], "Q8_0");
  EXPECT_EQ(types_of("q4_k_m", tensors)["blk.0.time_mix_g1.weight"], "float32");
  EXPECT_EQ(types_of("f16", tensors)["blk.0.time_mix_g1.weight"], "float16");
}

TEST(GgufMix, ATiedEmbeddingIsTheOutput) {
  EXPECT_EQ(types_of("q4_k_m", {{"token_embd.weight", {512, 256}}})["token_embd.weight"], "Q6_K");
  EXPECT_EQ(types_of("q4_k_m", {{"token_embd.weight", {512, 256}}, {"output.weight", {512, 256}}})["token_embd.weight"],
            "Q4_K");
}

TEST(GgufMix, ValuesAndDownProjectionsGetMoreBitsInSomeLayers) {
  std::vector<std::string> names;
  for (int layer = 0; layer < 8; ++layer)
    for (const char* tensor : {"attn_v.weight", "ffn_down.weight", "attn_q.weight"})
      names.push_back(fmt::format("blk.{}.{}", layer, tensor));
  std::vector<GgufMixTensor> tensors;
  for (const std::string& name : names) tensors.push_back({name, {256, 256}});
  auto types = types_of("q4_k_m", tensors);
  // The first eighth, the last eighth, and every third between.
  const std::map<int, std::string> expected = {{0, "Q6_K"}, {1, "Q4_K"}, {2, "Q4_K"}, {3, "Q6_K"},
                                               {4, "Q4_K"}, {5, "Q4_K"}, {6, "Q6_K"}, {7, "Q6_K"}};
  for (const auto& [layer, type] : expected) {
    EXPECT_EQ(types[fmt::format("blk.{}.attn_v.weight", layer)], type) << layer;
    EXPECT_EQ(types[fmt::format("blk.{}.ffn_down.weight", layer)], type) << layer;
    EXPECT_EQ(types[fmt::format("blk.{}.attn_q.weight", layer)], "Q4_K") << layer;
  }
  EXPECT_EQ(types_of("q4_k_m", tensors, 8)["blk.1.attn_v.weight"], "Q8_0");
}

TEST(GgufMix, RowsThatAreNoWholeBlocksFallBack) {
  const auto type = [](const char* mix, int64_t row) {
    return types_of(mix, {{"output.weight", {8, 256}}, {"blk.0.ssm_in.weight", {8, row}}})["blk.0.ssm_in.weight"];
  };
  EXPECT_EQ(type("q4_k_m", 320), "Q5_0");
  EXPECT_EQ(type("q5_k_m", 320), "Q5_1");
  EXPECT_EQ(type("q6_k", 320), "Q8_0");
  EXPECT_EQ(type("q4_0", 320), "Q4_0");
  EXPECT_EQ(type("q4_k_m", 48), "float16");
  EXPECT_EQ(type("q8_0", 48), "float16");
}

TEST(GgufMix, SaysWhichTensorsFellBack) {
  const GgufMix& mix = *find_gguf_mix("q4_k_m");
  const std::vector<GgufMixTensor> tensors = {{"blk.0.ssm_in.weight", {512, 320}},
                                              {"blk.0.ssm_out.weight", {320, 512}},
                                              {"blk.1.ssm_in.weight", {512, 320}},
                                              {"output_norm.weight", {320}}};
  const std::string note = describe_short_rows(mix, tensors, choose_gguf_types(mix, tensors, 2, 0));
  EXPECT_EQ(note.substr(0, 16), "2 of 4 tensors h") << note;
  EXPECT_TRUE(note.find("2 in Q5_0") != std::string::npos && note.find("320") != std::string::npos) << note;
  const std::vector<GgufMixTensor> whole = {tensors[1], tensors[3]};
  EXPECT_EQ(describe_short_rows(mix, whole, choose_gguf_types(mix, whole, 2, 0)), "");
  EXPECT_EQ(describe_short_rows(*find_gguf_mix("f16"), tensors, std::vector<DType>(4, DType::kFloat16)), "");
}

}  // namespace
}  // namespace coluber
