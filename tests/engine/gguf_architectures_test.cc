// SPDX-License-Identifier: Apache-2.0
//
// A model of each architecture that llama.cpp's converter made (tests/data/gguf/make_models.py) against the logits of
// the checkpoint that it was made from.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "base/dtype.h"
#include "base/mapped_file.h"
#include "families.h"
#include "formats/gguf.h"
#include "formats/safetensors.h"
#include "formats/temporary_folder_test.h"
#include "tensor/tensor_convert.h"

namespace coluber {
namespace {

// Of the logits' deviation; what the order of float32 sums leaves.
constexpr double kTolerance = 1e-4;

std::string folder() { return std::string(COLUBER_SOURCE_DIR) + "/tests/data/gguf/"; }

std::vector<std::string> models() {
  constexpr std::string_view kEnd = ".logits.safetensors";
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder())) {
    std::string name = entry.path().filename();
    if (name.ends_with(kEnd)) names.push_back(name.substr(0, name.size() - kEnd.size()));
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<float> floats_of(const TensorView& view) { return to_float_vector(view); }

double deviation_of(const std::vector<float>& values) {
  double sum = 0, squares = 0;
  for (const float v : values) {
    sum += v;
    squares += static_cast<double>(v) * v;
  }
  const auto count = static_cast<double>(values.size());
  return std::sqrt(squares / count - sum / count * sum / count);
}

class GgufArchitectures : public testing::TestWithParam<std::string> {};

TEST_P(GgufArchitectures, GivesTheLogitsOfItsCheckpoint) {
  const SafetensorsFile expected_file(folder() + GetParam() + ".logits.safetensors");
  const std::vector<float> expected = floats_of(expected_file.get("logits"));
  const TensorView stored = expected_file.get("ids");
  const std::vector<int32_t> ids(stored.as<int64_t>(), stored.as<int64_t>() + stored.shape.count());
  EngineOptions options;
  options.model = folder() + GetParam() + ".BF16.gguf";
  options.num_threads = 1;
  options.dtype = "float32";
  const auto engine = Engine::load(options);
  for (const std::string& note : engine->model_info().notes) ADD_FAILURE() << note;
  for (const int64_t chunk : {0, 7, 1}) {
    const std::vector<float> found = families::logits_of(*engine->open_session(), ids, chunk);
    ASSERT_EQ(found.size(), expected.size());
    double worst = 0;
    for (size_t i = 0; i < found.size(); ++i)
      worst = std::max(worst, std::fabs(static_cast<double>(found[i]) - expected[i]));
    EXPECT_LE(worst, kTolerance * deviation_of(expected)) << "chunks of " << chunk;
  }
}

INSTANTIATE_TEST_SUITE_P(Converted, GgufArchitectures, testing::ValuesIn(models()), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST(GgufArchitectures, ThereIsAModelOfEachKind) { EXPECT_GE(models().size(), 11U); }

// Rows and columns that the converter moved are moved back in whole blocks: no value is further from that of the file
// of bfloat16 than blocks of eight bits leave it.
TEST(GgufArchitectures, BlocksMoveAsValuesDo) {
  int compared = 0;
  for (const std::string& model : models()) {
    const std::string path = folder() + model + ".Q8_0.gguf";
    if (!std::filesystem::exists(path)) continue;
    const GgufWeights blocks(path), values(folder() + model + ".BF16.gguf");
    ASSERT_EQ(blocks.names(), values.names());
    for (const std::string& name : values.names()) {
      const TensorView view = blocks.get(name);
      compared += dtype_name(view.dtype) == "Q8_0" ? 1 : 0;
      const std::vector<float> found = floats_of(view), expected = floats_of(values.get(name));
      ASSERT_EQ(found.size(), expected.size()) << name;
      float largest = 0, worst = 0;
      for (size_t i = 0; i < found.size(); ++i) {
        largest = std::max(largest, std::fabs(expected[i]));
        worst = std::max(worst, std::fabs(found[i] - expected[i]));
      }
      EXPECT_LE(worst, largest / 200) << model << ": " << name;
    }
  }
  EXPECT_GE(compared, 40);
}

// The file names no tokenizer; here it names one that is not read.
TEST(GgufArchitectures, ATokenizerThatIsNotReadLeavesAModelOfIds) {
  const TemporaryFolder temporary;
  std::string file = read_text_file(folder() + "lfm2moe.BF16.gguf");
  constexpr std::string_view kKey = "tokenizer.ggml.model", kNone = "none", kOther = "bert";
  const size_t value = file.find(kNone, file.find(kKey));
  ASSERT_NE(value, std::string::npos);
  temporary.write("x.gguf", file.replace(value, kOther.size(), kOther));
  EngineOptions options;
  options.model = temporary.at("x.gguf");
  options.num_threads = 1;
  const auto engine = Engine::load(options);
  EXPECT_FALSE(engine->has_tokenizer());
  const std::vector<int32_t> ids = {1, 2, 3};
  EXPECT_FALSE(families::logits_of(*engine->open_session(), ids).empty());
}

TEST(GgufArchitectures, ReleasedTensorsAreMadeAnew) {
  const GgufWeights weights(folder() + "qwen35moe.Q8_0.gguf");
  const std::string name = "model.layers.0.linear_attn.in_proj_qkv.weight";
  const std::vector<float> first = floats_of(weights.get(name));
  const TensorView again = weights.get(name);
  weights.release(again);
  EXPECT_EQ(floats_of(weights.get(name)), first) << "one taker still has it";
  weights.release(again);
  weights.release(again);
  EXPECT_EQ(floats_of(weights.get(name)), first);
}

}  // namespace
}  // namespace coluber
