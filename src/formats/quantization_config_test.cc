// SPDX-License-Identifier: Apache-2.0
#include "formats/quantization_config.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "formats/hf_config.h"
#include "formats/temporary_folder_test.h"

namespace coluber {
namespace {

using Numbers = std::vector<int64_t>;

std::optional<QuantizationConfig> read(const std::string& section) {
  const Json config =
      parse_config(R"({"model_type": "mamba2", "quantization_config": )" + section + "}", "config.json");
  return read_quantization_config(config, "config.json", {});
}

std::string refusal(const std::string& section, ErrorCode code) {
  try {
    read(section);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "accepted: " << section;
  return {};
}

TEST(QuantizationConfig, IsNothingWhereNothingIsQuantized) {
  EXPECT_FALSE(read("null"));
  EXPECT_FALSE(read_quantization_config(parse_config("{}", "c"), "c", {}));
  EXPECT_FALSE(read_quantization_config(parse_config(R"({"text_config": {}})", "c"), "c", "/no/such/folder"));
}

TEST(QuantizationConfig, MethodsThatAreNotReadAreRefusedByName) {
  for (const char* method : {"hqq", "aqlm", "quip", "eetq", "torchao", "quanto", "vptq", "spqr", "bitnet", "higgs",
                             "mxfp4", "quark", "fp_quant", "auto-round"}) {
    const std::string message = refusal(std::string(R"({"quant_method": ")") + method + "\"}", ErrorCode::kUnsupported);
    EXPECT_NE(message.find(std::string("\"") + method + "\""), std::string::npos) << message;
    EXPECT_NE(message.find("read are gptq"), std::string::npos) << message;
    EXPECT_NE(message.find("GGUF"), std::string::npos) << message;
  }
  EXPECT_NE(refusal("{}", ErrorCode::kUnsupported).find("does not name"), std::string::npos);
  EXPECT_LT(refusal(R"({"quant_method": ")" + std::string(100000, 'x') + "\"}", ErrorCode::kUnsupported).size(), 1000U);
}

TEST(QuantizationConfig, FormsThatAreNotReadAreRefusedByName) {
  const struct {
    const char *section, *part;
  } kCases[] = {
      {R"({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"})", "\"marlin\""},
      {R"({"quant_method": "awq", "bits": 4, "version": "gemv_fast"})", "\"gemv_fast\""},
      {R"({"quant_method": "compressed-tensors", "format": "marlin-24"})", "\"marlin-24\""},
      {R"({"quant_method": "compressed-tensors", "format": "pack-quantized", "sparsity_config": {"format": "sparse-24-bitmask"}})",
       "\"sparse-24-bitmask\""},
      {R"({"quant_method": "compressed-tensors", "format": "pack-quantized", "transform_config": {"config_groups": {"u": {}}}})",
       "transforms"},
      {R"({"quant_method": "modelopt", "quant_algo": "W4A16_AWQ"})", "\"W4A16_AWQ\""},
  };
  for (const auto& c : kCases) {
    const std::string message = refusal(c.section, ErrorCode::kUnsupported);
    EXPECT_NE(message.find(c.part), std::string::npos) << message;
  }
}

TEST(QuantizationConfig, AllWrongFieldsAreToldAtOnce) {
  const std::string message = refusal(R"({"quant_method": "gptq", "bits": 5, "group_size": 0, "pack_dtype": "int8"})",
                                      ErrorCode::kInvalidConfig);
  for (const char* part : {"bits", "group_size", "pack_dtype"})
    EXPECT_NE(message.find(part), std::string::npos) << part << " in: " << message;
  refusal("4", ErrorCode::kInvalidConfig);
  refusal(R"({"quant_method": "fp8", "weight_block_size": [128]})", ErrorCode::kInvalidConfig);
  refusal(R"({"quant_method": "fp8", "weight_block_size": [0, 128]})", ErrorCode::kInvalidConfig);
  refusal(R"({"quant_method": "gptq", "group_size": -2})", ErrorCode::kInvalidConfig);
  refusal(R"({"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": {"num_bits": 99}}}})",
          ErrorCode::kInvalidConfig);
}

TEST(QuantizationConfig, NumbersAreThoseOfAnyModule) {
  const auto gptq = read(R"({"quant_method": "gptq", "bits": 4, "group_size": 128, "checkpoint_format": "gptq_v2"})");
  EXPECT_EQ(gptq->bits, Numbers{4});
  EXPECT_EQ(gptq->group_sizes, Numbers{128});
  EXPECT_FALSE(gptq->zeros_less_one);
  EXPECT_TRUE(read(R"({"quant_method": "gptq", "bits": 4})")->zeros_less_one);
  EXPECT_TRUE(read(R"({"quant_method": "gptq", "bits": 4, "dynamic": {"+:x": {"bits": 8}}})")->bits.empty());
  const auto groups = read(R"({"quant_method": "compressed-tensors", "format": "mixed-precision", "config_groups": {
      "a": {"weights": {"num_bits": 4, "group_size": 32}}, "b": {"weights": {"num_bits": 8, "block_structure": [64, 128]}},
      "c": {"weights": null}, "d": ["Linear"]}})");
  EXPECT_EQ(groups->bits, (Numbers{4, 8}));
  EXPECT_EQ(groups->block_size, (Numbers{64, 128}));
  EXPECT_EQ(read(R"({"quant_method": "fp8", "weight_block_size": [128, 64]})")->block_size, (Numbers{128, 64}));
  EXPECT_EQ(read(R"({"load_in_4bit": true})")->method, QuantizationMethod::kBitsAndBytes);
}

TEST(QuantizationConfig, IsFoundWherePackagesWriteIt) {
  const Json nested = parse_config(R"({"text_config": {"quantization_config": {"quant_method": "awq"}}})", "c");
  EXPECT_EQ(read_quantization_config(nested, "c", {})->method, QuantizationMethod::kAwq);
  const Json older = parse_config(R"({"compression_config": {"quant_method": "compressed-tensors"}})", "c");
  EXPECT_EQ(read_quantization_config(older, "c", {})->method, QuantizationMethod::kCompressedTensors);
  const Json plain = parse_config("{}", "c");
  {
    const TemporaryFolder folder;
    folder.write("quantize_config.json", R"({"bits": 4, "group_size": -1})");
    const auto config = read_quantization_config(plain, "c", folder.folder());
    EXPECT_EQ(config->method, QuantizationMethod::kGptq);
    EXPECT_EQ(config->group_sizes, Numbers{-1});
    EXPECT_EQ(config->path, folder.at("quantize_config.json"));
  }
  {
    const TemporaryFolder folder;
    folder.write("quant_config.json", R"({"w_bit": 4, "q_group_size": 64, "version": "GEMM"})");
    const auto config = read_quantization_config(plain, "c", folder.folder());
    EXPECT_EQ(config->method, QuantizationMethod::kAwq);
    EXPECT_EQ(config->group_sizes, Numbers{64});
  }
  const TemporaryFolder folder;
  folder.write("hf_quant_config.json", R"({"producer": {}, "quantization": {"quant_algo": "FP8"}})");
  EXPECT_EQ(read_quantization_config(plain, "c", folder.folder())->method, QuantizationMethod::kModelOpt);
}

}  // namespace
}  // namespace coluber
