// SPDX-License-Identifier: Apache-2.0
//
// Damaged quantised checkpoints: every tensor of every fixture (tests/data/quantized), one at a time, missing, of
// another shape or type, or full of other bytes. What a fixture's values are is tested in tests/engine.
#include "formats/quantized_weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"
#include "formats/hf_config.h"
#include "formats/weight_source.h"
#include "tensor/tensor_convert.h"

namespace coluber {
namespace {

struct Tensor {
  DType dtype;
  Shape shape;
  std::vector<std::byte> bytes;
};

// A checkpoint in memory, for tests to damage.
class Tensors final : public WeightSource {
 public:
  explicit Tensors(const std::string& folder) {
    const std::unique_ptr<WeightSource> files = open_weights(folder);
    for (const std::string& name : files->names()) {
      const TensorView view = files->get(name);
      by_name[name] = {view.dtype, view.shape, {view.data, view.data + view.size_bytes()}};
    }
  }
  bool contains(std::string_view name) const override { return by_name.contains(name); }
  TensorView get(std::string_view name) const override {
    const auto found = by_name.find(name);
    if (found == by_name.end()) throw make_error(ErrorCode::kNotFound, "no tensor '{}'", name);
    const Tensor& tensor = found->second;
    return TensorView::contiguous(tensor.bytes.data(), tensor.dtype, tensor.shape);
  }
  std::vector<std::string> names() const override {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : by_name) names.push_back(name);
    return names;
  }
  std::string describe() const override { return "test weights"; }

  std::map<std::string, Tensor, std::less<>> by_name;
};

std::string data_folder() { return std::string(COLUBER_SOURCE_DIR) + "/tests/data/quantized"; }

std::vector<std::string> fixture_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(data_folder()))
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

ThreadPool& pool() {
  static ThreadPool threads(1);
  return threads;
}

class QuantizedFixture : public testing::TestWithParam<std::string> {
 protected:
  std::string folder() const { return data_folder() + "/" + GetParam(); }
  QuantizationConfig config() const {
    const std::string path = folder() + "/config.json";
    return *read_quantization_config(read_config_file(path), path, folder());
  }
  // The message, or nothing where all weights can be read.
  std::string outcome(const Tensors& tensors) const {
    try {
      const QuantizedWeights weights(std::make_unique<Tensors>(tensors), config(), pool());
      for (const std::string& name : weights.names()) {
        const TensorView view = weights.get(name);
        EXPECT_EQ(view.shape, weights.peek(name).shape);
        if (is_floating(view.dtype)) to_float_vector(view);
        weights.release(view);
      }
    } catch (const Error& error) {
      EXPECT_NE(error.code(), ErrorCode::kInternal) << error.what();
      EXPECT_LT(std::string(error.what()).size(), 4000U) << error.what();
      return error.what();
    }
    return {};
  }
};

// Names of the tensors that stand for the first weight of all, and of what belongs to one alone.
std::vector<std::string> first_parts(const Tensors& tensors) {
  constexpr std::string_view kMains[] = {".qweight",      ".weight_packed",    ".weight.absmax",
                                         ".weight_scale", ".weight_scale_inv", ".SCB"};
  for (const std::string_view main : kMains) {
    for (const auto& [name, tensor] : tensors.by_name) {
      if (!name.ends_with(main)) continue;
      const std::string module = name.substr(0, name.size() - main.size()) + ".";
      std::vector<std::string> parts;
      for (const auto& [other, ignored] : tensors.by_name)
        if (other.starts_with(module)) parts.push_back(other);
      return parts;
    }
  }
  return {};
}

void resize(Tensor& tensor, const Shape& shape) {
  tensor.shape = shape;
  tensor.bytes.resize(static_cast<size_t>(dtype_bytes(tensor.dtype, shape.count())));
}

TEST_P(QuantizedFixture, IsReadWholeAsItIs) {
  const Tensors whole(folder());
  EXPECT_EQ(outcome(whole), "");
  EXPECT_FALSE(first_parts(whole).empty());
}

TEST_P(QuantizedFixture, WithoutATensorItSaysWhichIsMissing) {
  const Tensors whole(folder());
  int refused = 0;
  for (const std::string& name : first_parts(whole)) {
    Tensors damaged = whole;
    damaged.by_name.erase(name);
    const std::string message = outcome(damaged);
    if (message.empty()) continue;  // what nothing needs, or a main part: the weight itself is missing then
    ++refused;
    // (Of a state of bitsandbytes only that one is missing: it says itself which of two kinds it is.)
    const size_t end = name.find(".bitsandbytes__");
    EXPECT_NE(message.find(name.substr(0, end)), std::string::npos) << name << ": " << message;
  }
  // A code without its scale stays a tensor of its own type, which layers refuse.
  if (GetParam().starts_with("gptq") || GetParam().starts_with("awq") || GetParam().find("int4") != std::string::npos) {
    EXPECT_GE(refused, 2);
  }
}

TEST_P(QuantizedFixture, OtherSizesAreRefusedOrReadWhole) {
  const Tensors whole(folder());
  for (const std::string& name : first_parts(whole)) {
    const Shape shape = whole.by_name.at(name).shape;
    std::vector<Shape> others = {Shape{}, Shape{0}, Shape{0, 0}, Shape{1}, Shape{3, 5}, Shape{1, 1, 1}};
    for (int i = 0; i < shape.rank(); ++i) {
      for (const int64_t size : {shape[i] / 2, shape[i] - 1, shape[i] + 1, 2 * shape[i], int64_t{0}, int64_t{1}}) {
        others.push_back(shape);
        others.back()[i] = std::max<int64_t>(size, 0);
      }
    }
    for (const Shape& other : others) {
      Tensors damaged = whole;
      resize(damaged.by_name.at(name), other);
      SCOPED_TRACE(name + " " + other.to_string());
      outcome(damaged);
    }
  }
}

TEST_P(QuantizedFixture, OtherTypesAreRefusedOrReadWhole) {
  const Tensors whole(folder());
  for (const std::string& name : first_parts(whole)) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kInt64, DType::kInt32, DType::kInt8,
                              DType::kUInt8, DType::kFloat8E4M3, DType::kBool}) {
      Tensors damaged = whole;
      Tensor& tensor = damaged.by_name.at(name);
      tensor.dtype = dtype;
      resize(tensor, tensor.shape);
      SCOPED_TRACE(name + " " + std::string(dtype_name(dtype)));
      outcome(damaged);
    }
  }
}

TEST_P(QuantizedFixture, OtherBytesAreRefusedOrReadWhole) {
  const Tensors whole(folder());
  for (const std::string& name : first_parts(whole)) {
    for (const int byte : {0x00, 0x01, 0x7f, 0x80, 0xff}) {
      Tensors damaged = whole;
      std::ranges::fill(damaged.by_name.at(name).bytes, static_cast<std::byte>(byte));
      SCOPED_TRACE(name + " " + std::to_string(byte));
      outcome(damaged);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, QuantizedFixture, testing::ValuesIn(fixture_names()),
                         [](const auto& info) { return info.param; });

std::string refusal(const std::string& fixture, const std::function<void(Tensors&)>& damage) {
  const std::string folder = data_folder() + "/" + fixture, path = folder + "/config.json";
  Tensors tensors(folder);
  damage(tensors);
  try {
    QuantizedWeights(std::make_unique<Tensors>(tensors),
                     *read_quantization_config(read_config_file(path), path, folder), pool());
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidData);
    return error.what();
  }
  return "accepted";
}

TEST(QuantizedWeights, AGroupThatIsNotThereIsRefused) {
  const std::string name = "backbone.layers.0.mixer.in_proj.g_idx";
  for (const int32_t group : {-1, 4, 1 << 30}) {
    const std::string message = refusal("gptq4_actorder", [&](Tensors& tensors) {
      std::memcpy(tensors.by_name.at(name).bytes.data() + 20, &group, sizeof group);
    });
    EXPECT_NE(message.find("element 5 is " + std::to_string(group) + "; expected a group from 0 to 3"),
              std::string::npos)
        << message;
  }
}

TEST(QuantizedWeights, AWeightWithoutItsScalesOrItsOrderIsRefused) {
  constexpr std::pair<const char*, const char*> kNeeded[] = {
      {"fp8_block", "model.layers.0.conv.in_proj.weight_scale_inv"},
      {"fp8_stacked", "model.layers.0.block_sparse_moe.input_linear.weight_scale_inv"},
      {"fp8_ue8m0", "model.layers.0.mamba.in_proj.weight_scale_inv"},
      {"ct_fp8", "model.layers.0.linear_attn.in_proj_ba.weight_scale"},
      {"modelopt_fp8", "model.layers.0.feed_forward.down_proj.weight_scale"},
      {"ct_nvfp4", "model.layers.0.conv.in_proj.weight_global_scale"},
      {"gptq4_actorder", "backbone.layers.0.mixer.in_proj.g_idx"},
      {"ct_int4_actorder", "backbone.layers.0.mixer.in_proj.weight_g_idx"},
  };
  for (const auto& [fixture, name] : kNeeded) {
    const std::string message =
        refusal(fixture, [name = name](Tensors& tensors) { ASSERT_EQ(tensors.by_name.erase(name), 1U) << name; });
    EXPECT_NE(message.find(std::string("'") + name + "'"), std::string::npos) << fixture << ": " << message;
  }
}

TEST(QuantizedWeights, AllProblemsAreToldAtOnce) {
  const std::string message = refusal("awq4", [](Tensors& tensors) {
    tensors.by_name.erase("model.layers.0.mlp.experts.0.up_proj.qzeros");
    tensors.by_name.erase("model.layers.1.mlp.experts.3.down_proj.scales");
  });
  EXPECT_NE(message.find("experts.0.up_proj.qzeros' missing"), std::string::npos) << message;
  EXPECT_NE(message.find("experts.3.down_proj.scales' missing"), std::string::npos) << message;
}

TEST(QuantizedWeights, ADamagedStateIsRefused) {
  const std::string name = "model.layers.0.linear_attn.out_proj.weight.quant_state.bitsandbytes__nf4";
  for (const std::string text :
       {"", "{", "[]", "{}", R"({"blocksize": 0, "shape": [64, 64]})", R"({"blocksize": 64, "shape": [64, 65]})",
        R"({"blocksize": 64, "shape": [2147483648, 2147483648, 2147483648]})", R"({"blocksize": 64, "shape": []})",
        R"({"blocksize": 64, "shape": [64, 64], "nested_offset": 1e999})",
        R"({"blocksize": 64, "shape": [64, 64], "nested_blocksize": 7})"}) {
    const std::string message = refusal("bnb_nf4", [&](Tensors& tensors) {
      Tensor& tensor = tensors.by_name.at(name);
      const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
      tensor.bytes.assign(bytes, bytes + text.size());
      tensor.shape = Shape{static_cast<int64_t>(text.size())};
    });
    EXPECT_NE(message.find("out_proj"), std::string::npos) << text << ": " << message;
  }
}

TEST(QuantizedWeights, AWeightBesideItsQuantizedFormIsRefused) {
  const std::string message = refusal("awq4", [](Tensors& tensors) {
    tensors.by_name["model.layers.0.mlp.experts.0.up_proj.weight"] = tensors.by_name.at("model.norm.weight");
  });
  EXPECT_NE(message.find("both stand for the weight"), std::string::npos) << message;
}

TEST(QuantizedWeights, OtherBitsThanTheConfigStatesAreRefused) {
  const std::string folder = data_folder() + "/gptq4_v2", path = folder + "/config.json";
  QuantizationConfig config = *read_quantization_config(read_config_file(path), path, folder);
  config.bits = {8};
  try {
    QuantizedWeights(std::make_unique<Tensors>(folder), config, pool());
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("bits is 4; expected 8"), std::string::npos) << error.what();
  }
}

TEST(QuantizedWeights, OtherGroupsThanTheConfigStatesAreRefused) {
  for (const char* fixture : {"gptq4_actorder", "awq4"}) {
    const std::string folder = data_folder() + "/" + fixture, path = folder + "/config.json";
    QuantizationConfig config = *read_quantization_config(read_config_file(path), path, folder);
    config.group_sizes = {64};
    try {
      QuantizedWeights(std::make_unique<Tensors>(folder), config, pool());
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("size of 32; expected 64"), std::string::npos) << error.what();
    }
  }
}

TEST(QuantizedWeights, AreMadeAnewAfterTheyWereReleased) {
  const std::string folder = data_folder() + "/gptq4_v2", path = folder + "/config.json";
  const QuantizedWeights weights(std::make_unique<Tensors>(folder),
                                 *read_quantization_config(read_config_file(path), path, folder), pool());
  const std::string name = "model.layers.0.feed_forward.w1.weight";
  const TensorView first = weights.get(name);
  const std::vector<float> values = to_float_vector(first);
  EXPECT_EQ(weights.get(name).data, first.data);
  weights.release(first);
  EXPECT_EQ(weights.made_bytes(), 0);
  EXPECT_EQ(to_float_vector(weights.get(name)), values);
}

}  // namespace
}  // namespace coluber
