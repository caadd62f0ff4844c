// SPDX-License-Identifier: Apache-2.0
//
// GGUF files of PyPI's `gguf` (tests/data/gguf) as models: their logits, split files, damaged ones, and folders that
// hold one.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/dtype.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "families.h"
#include "formats/gguf.h"
#include "formats/safetensors.h"
#include "formats/temporary_folder_test.h"
#include "formats/weight_source.h"
#include "model_copy.h"

namespace coluber {
namespace {

using Floats = std::vector<float>;

// Of the logits' deviation; what the order of float32 sums leaves.
constexpr double kTolerance = 1e-4;

std::string fixture(const std::string& name) { return std::string(COLUBER_SOURCE_DIR) + "/tests/data/gguf/" + name; }

std::unique_ptr<Engine> load(const std::string& path) {
  EngineOptions options;
  options.model = path;
  options.num_threads = 1;
  return Engine::load(options);
}

Floats logits_of(const std::string& path, int64_t chunk = 0) {
  const auto engine = load(path);
  return families::logits_of(*engine->open_session(), families::prompt_of(40), chunk);
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
  ASSERT_GT(deviation, 0);
  EXPECT_LE(worst, kTolerance * deviation);
}

std::string refusal_of(const std::string& path) {
  try {
    load(path);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

class GgufModel : public testing::Test, public TemporaryFolder {
 protected:
  // The float32 file of a family in tests/data: its header, and behind it the values of the safetensors file.
  void write_float32(const std::string& family, const std::string& name) const {
    std::string file = read_text_file(fixture(family + ".F32.head"));
    const Json origins = read_json_file(fixture(family + ".F32.json"));
    const auto weights = open_weights(std::string(COLUBER_SOURCE_DIR) + "/tests/data/" + family);
    const GgufHeader header = header_of(file);
    for (const GgufTensor& tensor : header.tensors) {
      const TensorView view = weights->get(origins.at(tensor.name).as_string());
      ASSERT_EQ(view.shape.count(), tensor.shape.count()) << tensor.name;
      Floats values(static_cast<size_t>(view.shape.count()));
      convert_to_float(view.data, view.dtype, view.shape.count(), values.data());
      if (tensor.name.ends_with(".ssm_a"))
        for (float& value : values) value = -std::exp(value);
      const auto end = static_cast<size_t>(tensor.offset + tensor.size_bytes);
      if (file.size() < end) file.resize(end);
      std::memcpy(file.data() + tensor.offset, values.data(), static_cast<size_t>(tensor.size_bytes));
    }
    write(name, file);
  }
  // A header without its data is refused, so it is read with as many bytes behind it as it may need.
  static GgufHeader header_of(const std::string& head) {
    const std::string padded = head + std::string(size_t{1} << 20, '\0');
    return parse_gguf(std::as_bytes(std::span(padded)), "head");
  }
  // The model in safetensors with every block decoded.
  void write_decoded(const std::string& path) const {
    const GgufWeights weights(path);
    std::vector<Floats> values;
    std::vector<SafetensorsOutput> outputs;
    for (const std::string& name : weights.names()) {
      const TensorView view = weights.get(name);
      values.emplace_back(static_cast<size_t>(view.shape.count()));
      convert_to_float(view.data, view.dtype, view.shape.count(), values.back().data());
      outputs.push_back(SafetensorsOutput::from_view(
          name, TensorView::contiguous(values.back().data(), DType::kFloat32, view.shape)));
    }
    write_safetensors(at("model.safetensors"), outputs);
    write("config.json", weights.config_json());
  }
  void copy(const std::string& name) const { std::filesystem::copy_file(fixture(name), at(name)); }
};

TEST_F(GgufModel, InFloat32ItGivesTheLogitsOfItsCheckpoint) {
  for (const char* family : {"mamba2", "lfm2"}) {
    SCOPED_TRACE(family);
    const std::string file = std::string(family) + ".gguf";
    write_float32(family, file);
    // llama.cpp norms Mamba-2 by group, as a config does that no transformers wrote which spans the groups.
    ModelCopy checkpoint(family);
    checkpoint.remove_key("transformers_version");
    checkpoint.write_all();
    const Floats expected = logits_of(checkpoint.folder());
    for (const int64_t chunk : {0, 7, 1}) expect_near(logits_of(at(file), chunk), expected);
  }
}

TEST_F(GgufModel, BlocksGiveTheLogitsOfTheirValues) {
  for (const char* file : {"mamba2.Q8_0.gguf", "mamba2.Q4_0-00001-of-00002.gguf", "lfm2.Q8_0.gguf", "lfm2.Q4_0.gguf"}) {
    SCOPED_TRACE(file);
    write_decoded(fixture(file));
    const Floats expected = logits_of(folder());
    for (const int64_t chunk : {0, 7, 1}) expect_near(logits_of(fixture(file), chunk), expected);
  }
}

TEST_F(GgufModel, ASplitModelNeedsAllItsFiles) {
  copy("mamba2.Q4_0-00001-of-00002.gguf");
  const std::string first = at("mamba2.Q4_0-00001-of-00002.gguf");
  EXPECT_NE(refusal_of(first).find("mamba2.Q4_0-00002-of-00002.gguf"), std::string::npos) << refusal_of(first);
  copy("mamba2.Q4_0-00002-of-00002.gguf");
  EXPECT_EQ(logits_of(first), logits_of(fixture("mamba2.Q4_0-00001-of-00002.gguf")));
}

TEST_F(GgufModel, AFileOfAnotherPlaceInASplitModelIsRefused) {
  copy("mamba2.Q4_0-00001-of-00002.gguf");
  const std::string second = read_text_file(fixture("mamba2.Q4_0-00002-of-00002.gguf"));
  for (const auto& [key, value] :
       {std::pair("split.no", 4), std::pair("split.count", 3), {"split.tensors.count", 19}}) {
    std::string other = second;
    const size_t place = other.find(key) + std::string_view(key).size() + sizeof(uint32_t);
    other[place] = static_cast<char>(value);
    write("mamba2.Q4_0-00002-of-00002.gguf", other);
    const std::string message = refusal_of(at("mamba2.Q4_0-00001-of-00002.gguf"));
    EXPECT_NE(message.find("expected file 2 of 2 of a model of 20 tensors"), std::string::npos)
        << key << ": " << message;
  }
}

TEST_F(GgufModel, NamesThatAreNoUtf8AreRefused) {
  std::string file = read_text_file(fixture("lfm2.Q8_0.gguf"));
  file[file.find("token_embd_norm.weight")] = '\xff';
  write("x.gguf", file);
  const std::string message = refusal_of(at("x.gguf"));
  EXPECT_NE(message.find("the name of a tensor is not UTF-8"), std::string::npos) << message;
}

TEST_F(GgufModel, NamesOfControlCharactersAreSpelledOut) {
  std::string file = read_text_file(fixture("lfm2.Q8_0.gguf"));
  const std::string_view name = "token_embd_norm.weight";
  file.replace(file.find(name), name.size(), std::string("\x1b[2J\0_embd_norm.weight", name.size()));
  const std::string shape = std::string("\x01\0\0\0\x40\0\0\0\0\0\0\0", 12);
  const size_t rank = file.find(shape, file.find("_embd_norm.weight"));
  file[rank] = 9;
  write("x.gguf", file);
  const std::string message = refusal_of(at("x.gguf"));
  EXPECT_NE(message.find("tensor '\\x1b[2J\\x00_embd_norm.weight' of rank 9; expected 1 to 4"), std::string::npos)
      << message;
}

TEST_F(GgufModel, HalfAFileIsRefused) {
  const std::string whole = read_text_file(fixture("lfm2.Q8_0.gguf"));
  for (const size_t size : {size_t{0}, size_t{3}, size_t{40}, whole.size() / 2, whole.size() - 1}) {
    write("x.gguf", whole.substr(0, size));
    EXPECT_NE(refusal_of(at("x.gguf")).find("x.gguf"), std::string::npos) << size << " bytes";
  }
}

// Counts and lengths of the header, each replaced by one that the file cannot hold.
TEST_F(GgufModel, ALyingHeaderIsRefused) {
  const std::string whole = read_text_file(fixture("lfm2.Q8_0.gguf"));
  for (const size_t place : {size_t{8}, size_t{16}, size_t{24}}) {
    for (const uint64_t lie : {uint64_t{1} << 20, uint64_t{1} << 40, ~uint64_t{0}}) {
      std::string file = whole;
      std::memcpy(file.data() + place, &lie, sizeof lie);
      write("x.gguf", file);
      EXPECT_NE(refusal_of(at("x.gguf")).find("x.gguf"), std::string::npos) << lie << " at " << place;
    }
  }
}

TEST_F(GgufModel, AFolderThatHoldsOneIsAModel) {
  copy("lfm2.Q4_0.gguf");
  EXPECT_EQ(logits_of(folder()), logits_of(fixture("lfm2.Q4_0.gguf")));
  copy("lfm2.Q8_0.gguf");
  const std::string message = refusal_of(folder());
  for (const char* part : {"lfm2.Q4_0.gguf", "lfm2.Q8_0.gguf", ".gguf file"})
    EXPECT_NE(message.find(part), std::string::npos) << part << " in: " << message;
}

TEST_F(GgufModel, AFolderThatHoldsASplitOneIsAModel) {
  copy("mamba2.Q4_0-00001-of-00002.gguf");
  copy("mamba2.Q4_0-00002-of-00002.gguf");
  EXPECT_EQ(logits_of(folder()), logits_of(fixture("mamba2.Q4_0-00001-of-00002.gguf")));
}

TEST_F(GgufModel, WeightsOfOtherFormatsComeFirst) {
  write_decoded(fixture("mamba2.Q8_0.gguf"));
  copy("lfm2.Q4_0.gguf");
  EXPECT_EQ(load(folder())->model_info().architecture, "mamba2");
  EXPECT_EQ(load(at("lfm2.Q4_0.gguf"))->model_info().architecture, "lfm2");
}

}  // namespace
}  // namespace coluber
