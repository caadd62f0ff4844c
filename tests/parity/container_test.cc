// SPDX-License-Identifier: Apache-2.0
//
// transformers names a model's text part X_text where X is a container of text, pictures and more. A checkpoint of the
// text part, put into its container's form, gives the logits that are expected of it.
#include <gtest/gtest.h>

#include "base/json.h"
#include "coluber/registry.h"
#include "coluber/session.h"
#include "formats/safetensors.h"
#include "formats/temporary_folder_test.h"
#include "formats/weight_source.h"
#include "golden_folder.h"

namespace coluber {
namespace {

using golden::Folder;

std::vector<Folder> text_parts() {
  std::vector<Folder> folders = golden::find_folders();
  std::erase_if(folders, [](const Folder& folder) {
    const std::string container = golden::container_of(folder.family);
    return container.empty() || ModelRegistry::instance().find(container) == nullptr;
  });
  return folders;
}

class Container : public testing::TestWithParam<Folder>, public TemporaryFolder {
 protected:
  void SetUp() override {
    const std::string& source = GetParam().path;
    Json config{Json::Object{}};
    config.set("model_type", golden::container_of(GetParam().family));
    config.set("text_config", read_json_file(source + "/config.json", {.allow_python_constants = true}));
    write("config.json", config.dump());
    const std::unique_ptr<WeightSource> weights = open_weights(source);
    std::vector<SafetensorsOutput> outputs;
    constexpr std::string_view kText = "model.";
    for (const std::string& name : weights->names()) {
      const std::string inside = name.starts_with(kText) ? "model.language_model." + name.substr(kText.size()) : name;
      outputs.push_back(SafetensorsOutput::from_view(inside, weights->get(name)));
    }
    write_safetensors(at("model.safetensors"), outputs);
  }
};

TEST_P(Container, GivesTheLogitsOfItsTextPart) {
  EngineOptions options;
  options.model = folder();
  options.num_threads = 1;
  const auto engine = Engine::load(options);
  const golden::Tensors tensors(GetParam().path);
  const std::string tail = "." + std::to_string(GetParam().states_prompt);
  const std::vector<float> expected = tensors.floats("logits" + tail);
  std::vector<float> logits;
  const int64_t vocab = engine->model_info().vocab_size;
  engine->open_session()->extend(tensors.ids("input_ids" + tail), 0, [&](const float* values, int64_t rows) {
    logits.insert(logits.end(), values, values + rows * vocab);
  });
  ASSERT_GE(logits.size(), expected.size());  // of this repository's folders the last rows are there
  ASSERT_GT(expected.size(), 0u);
  const auto count = static_cast<int64_t>(expected.size());
  EXPECT_LE(golden::max_abs_difference(logits.data() + logits.size() - expected.size(), expected.data(), count),
            GetParam().tolerance);
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Container);
INSTANTIATE_TEST_SUITE_P(Golden, Container, testing::ValuesIn(text_parts()),
                         [](const testing::TestParamInfo<Folder>& info) { return info.param.name; });

}  // namespace
}  // namespace coluber
