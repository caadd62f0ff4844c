// SPDX-License-Identifier: Apache-2.0
//
// Quantised checkpoints that foreign packages wrote (tests/data/quantized), by enumeration: their weights are the
// packages' bit for bit, and the model runs as that of its dequantised weights does.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "engine/convert.h"
#include "engine/description.h"
#include "families.h"
#include "formats/hf_config.h"
#include "formats/quantized_weights.h"
#include "formats/safetensors.h"
#include "formats/temporary_folder_test.h"
#include "formats/weight_source.h"
#include "tensor/tensor_convert.h"

namespace coluber {
namespace {

using Floats = std::vector<float>;

// Of the logits' deviation; what the order of float32 sums leaves.
constexpr double kTolerance = 1e-4;
// Of a value, where the package multiplies in another order.
constexpr float kOtherOrder = 3e-7f;

std::string data_folder() { return std::string(COLUBER_SOURCE_DIR) + "/tests/data/quantized"; }

std::vector<std::string> fixture_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(data_folder()))
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

uint32_t crc32(const void* data, size_t bytes) {
  uint32_t crc = ~0U;
  for (size_t i = 0; i < bytes; ++i) {
    crc ^= static_cast<const uint8_t*>(data)[i];
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0xedb88320U : 0);
  }
  return ~crc;
}

Floats logits_of(const std::string& path, int64_t chunk = 0) {
  EngineOptions options;
  options.model = path;
  options.num_threads = 2;
  const auto engine = Engine::load(options);
  std::vector<int32_t> ids = families::prompt_of(40);
  for (int32_t& id : ids) id %= 128;
  return families::logits_of(*engine->open_session(), ids, chunk);
}

void expect_near(const Floats& found, const Floats& expected) {
  ASSERT_EQ(found.size(), expected.size());
  double sum = 0, squares = 0, worst = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    sum += expected[i];
    squares += static_cast<double>(expected[i]) * expected[i];
    worst = std::max(worst, std::fabs(static_cast<double>(found[i]) - expected[i]));
  }
  const double mean = sum / static_cast<double>(found.size());
  const double deviation = std::sqrt(squares / static_cast<double>(found.size()) - mean * mean);
  ASSERT_GT(deviation, 1e-3);
  EXPECT_LE(worst, kTolerance * deviation);
}

class QuantizedModel : public testing::TestWithParam<std::string>, public TemporaryFolder {
 protected:
  std::string fixture() const { return data_folder() + "/" + GetParam(); }
  std::unique_ptr<QuantizedWeights> open() {
    const std::string path = fixture() + "/config.json";
    const auto config = read_quantization_config(read_config_file(path), path, fixture());
    if (!config) throw std::runtime_error(path + " says nothing of quantisation");
    return std::make_unique<QuantizedWeights>(open_weights(fixture()), *config, pool_);
  }
  // The model in safetensors with every weight decoded.
  void write_decoded(const QuantizedWeights& weights) const {
    std::vector<Floats> values;
    std::vector<SafetensorsOutput> outputs;
    for (const std::string& name : weights.names()) {
      const TensorView view = weights.get(name);
      values.push_back(to_float_vector(view));
      outputs.push_back(SafetensorsOutput::from_view(
          name, TensorView::contiguous(values.back().data(), DType::kFloat32, view.shape)));
    }
    write_safetensors(at("model.safetensors"), outputs);
    Json config = read_config_file(fixture() + "/config.json");
    config.set("quantization_config", nullptr);
    write("config.json", config.dump());
  }

 private:
  ThreadPool pool_{2};
};

TEST_P(QuantizedModel, HasTheValuesOfThePackageBitForBit) {
  const auto weights = open();
  const Json expected = read_json_file(fixture() + "/expected.json").at("weights");
  int64_t compared = 0;
  for (const auto& [name, facts] : expected.as_object()) {
    const TensorView view = weights->get(name);
    std::vector<int64_t> sizes;
    for (const Json& size : facts.at("shape").as_array()) sizes.push_back(size.as_int());
    ASSERT_EQ(view.shape, Shape(std::span<const int64_t>(sizes))) << name;
    EXPECT_EQ(weights->peek(name).dtype, view.dtype);
    Floats values = to_float_vector(view);
    for (float& value : values) value += 0.0f;  // packages differ in the sign of zeros
    EXPECT_EQ(crc32(values.data(), values.size() * sizeof(float)), facts.at("crc32").as_int())
        << name << " as " << dtype_name(view.dtype);
    ++compared;
  }
  if (file_exists(fixture() + "/expected.safetensors")) {
    const SafetensorsFile values(fixture() + "/expected.safetensors");
    for (const std::string& name : values.names()) {
      const Floats found = to_float_vector(weights->get(name)), want = to_float_vector(values.get(name));
      ASSERT_EQ(found.size(), want.size()) << name;
      for (size_t i = 0; i < want.size(); ++i)
        ASSERT_LE(std::fabs(found[i] - want[i]), kOtherOrder * std::fabs(want[i])) << name << ", value " << i;
      ++compared;
    }
  }
  EXPECT_EQ(compared, weights->num_quantized());
  EXPECT_GT(compared, 1);
}

TEST_P(QuantizedModel, GivesTheLogitsOfItsDequantizedWeights) {
  write_decoded(*open());
  const Floats expected = logits_of(folder());
  for (const int64_t chunk : {0, 7, 1}) expect_near(logits_of(fixture(), chunk), expected);
}

TEST_P(QuantizedModel, IsConvertedToItsValues) {
  ConvertOptions options;
  options.model = fixture();
  options.output = at("converted");
  options.type = "float32";
  convert_model(options);
  EXPECT_EQ(logits_of(at("converted")).size(), 40U * 128U);
  expect_near(logits_of(at("converted")), logits_of(fixture()));
}

TEST_P(QuantizedModel, UsesEveryTensorAndTellsItsTypes) {
  EngineOptions options;
  options.model = fixture();
  options.num_threads = 1;
  const ModelInfo info = describe_model(options).model->info();
  for (const std::string& note : info.notes) EXPECT_EQ(note.find("nothing uses"), std::string::npos) << note;
  const bool named =
      std::any_of(info.parameters_by_dtype.begin(), info.parameters_by_dtype.end(),
                  [](const auto& entry) { return dtype_name(entry.first).find("_G") != std::string_view::npos; });
  EXPECT_TRUE(named);
}

TEST_P(QuantizedModel, HoldsOneWeightAtATimeBesideTheFile) {
  const auto weights = open();
  int64_t largest = 0;
  for (const std::string& name : weights->names()) {
    const TensorView view = weights->get(name);
    largest = std::max(largest, view.size_bytes());
    EXPECT_LE(weights->made_bytes(), largest) << name;
    // In two halves, as layers that cut a weight do.
    if (view.shape.rank() == 2 && view.shape[0] > 1) {
      TensorView half = view;
      half.shape[0] = view.shape[0] / 2;
      weights->release(half);
      half.data += dtype_bytes(view.dtype, half.shape[0] * view.shape[1]);
      half.shape[0] = view.shape[0] - half.shape[0];
      weights->release(half);
    } else {
      weights->release(view);
    }
    EXPECT_EQ(weights->made_bytes(), 0) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, QuantizedModel, testing::ValuesIn(fixture_names()),
                         [](const auto& info) { return info.param; });

TEST(QuantizedModels, ComeFromEveryPackage) {
  std::set<std::string> packages;
  for (const std::string& name : fixture_names()) {
    const std::string package = read_json_file(data_folder() + "/" + name + "/expected.json").at("package").as_string();
    packages.insert(package.substr(0, package.find(' ')));
  }
  EXPECT_EQ(packages, (std::set<std::string>{"autoawq", "bitsandbytes", "compressed-tensors", "gptqmodel",
                                             "nvidia-modelopt", "transformers"}));
}

}  // namespace
}  // namespace coluber
