// SPDX-License-Identifier: Apache-2.0
//
// Every golden folder of a supported family: logits of every prompt in several chunk sizes, greedy continuations,
// hidden states and final states, through the engine's own steps. A model is tested with no test code: put its folder
// there.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "coluber/registry.h"
#include "coluber/session.h"
#include "golden_folder.h"
#include "tensor/cuda_library.h"

namespace coluber {
namespace {

using golden::Folder;
using golden::Tensors;

constexpr int64_t kGreedyTokens = 24;
constexpr double kUndecidedMargin = 1e-4;  // a smaller lead of the best token may fall either way
constexpr double kStateTolerance = 1e-3;   // relative to the tensor's largest value

bool is_supported(const Folder& folder) { return !folder.family.empty(); }

std::vector<Folder> supported_folders() {
  std::vector<Folder> folders = golden::find_folders();
  std::erase_if(folders, [](const Folder& folder) { return !is_supported(folder); });
  return folders;
}

std::vector<Folder> folders_on_cuda() {
  std::vector<Folder> folders = supported_folders();
  std::erase_if(folders,
                [](const Folder& folder) { return !ModelRegistry::instance().find(folder.family)->runs_on_cuda; });
  for (Folder& folder : folders) folder.device = "cuda";
  return folders;
}

class Parity : public testing::TestWithParam<Folder> {
 protected:
  void SetUp() override {
    std::string missing;
    if (GetParam().device != "cpu" && CudaLibrary::find(&missing) == nullptr) GTEST_SKIP() << missing;
    EngineOptions options;
    options.device = GetParam().device;
    options.model = GetParam().path;
    options.num_threads = 2;
    options.poison_pools = true;
    engine_ = Engine::load(options);
    tensors_ = std::make_unique<Tensors>(GetParam().path);
  }

  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Tensors> tensors_;
};

TEST_P(Parity, LogitsOfEveryPromptInEveryChunkSize) {
  const int64_t vocab = engine_->model_info().vocab_size;
  for (int64_t length : GetParam().prompt_lengths) {
    const std::vector<int32_t> ids = tensors_->ids("input_ids." + std::to_string(length));
    const std::vector<float> expected = tensors_->floats("logits." + std::to_string(length));
    ASSERT_EQ(static_cast<int64_t>(ids.size()), length);
    std::vector<float> in_one_piece;
    for (int64_t chunk : {length, int64_t{64}, int64_t{7}, int64_t{3}, int64_t{1}}) {
      auto session = engine_->open_session();
      const int64_t steps_before = engine_->num_steps();
      std::vector<float> logits;
      session->extend(ids, chunk, [&](const float* values, int64_t rows) {
        logits.insert(logits.end(), values, values + rows * vocab);
      });
      ASSERT_EQ(static_cast<int64_t>(logits.size()), length * vocab);
      EXPECT_EQ(engine_->num_steps() - steps_before, (length + chunk - 1) / chunk)
          << "each chunk is one step of the engine";
      if (in_one_piece.empty()) in_one_piece = logits;
      // Of the long prompt the last rows are there; rows without one right value must not hang on the chunks.
      const int64_t first = length - static_cast<int64_t>(expected.size()) / vocab;
      const int64_t decided = std::clamp(GetParam().decided_positions, first, length);
      int64_t worst = 0;
      const double difference =
          golden::max_abs_difference(logits.data() + first * vocab, expected.data(), (decided - first) * vocab, &worst);
      EXPECT_LE(golden::max_abs_difference(logits.data() + decided * vocab, in_one_piece.data() + decided * vocab,
                                           (length - decided) * vocab),
                GetParam().tolerance)
          << "prompt " << length << ", chunk " << chunk << ": not what one piece gives";
      EXPECT_LE(difference, GetParam().tolerance)
          << "prompt " << length << ", chunk " << chunk << ", row " << worst / vocab << ", id " << worst % vocab;
    }
  }
}

TEST_P(Parity, GreedyTokens) {
  for (int64_t length : GetParam().prompt_lengths) {
    const std::string tail = "." + std::to_string(length);
    const std::vector<int32_t> expected = tensors_->ids("greedy" + tail);
    const std::vector<float> margin = tensors_->floats("greedy_margin" + tail);
    SamplingParams greedy;
    greedy.temperature = 0.0f;
    greedy.ignore_eos = true;
    greedy.max_tokens = kGreedyTokens;
    auto session = engine_->open_session();
    session->extend(tensors_->ids("input_ids" + tail));
    const RequestOutput output = session->generate(greedy);
    ASSERT_EQ(output.tokens.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      if (length + static_cast<int64_t>(i) > GetParam().decided_positions) break;
      if (output.tokens[i].id == expected[i]) continue;
      EXPECT_LT(margin[i], kUndecidedMargin)
          << "prompt " << length << ": token " << i << " is " << output.tokens[i].id << ", expected " << expected[i];
      break;
    }
  }
}

TEST_P(Parity, HiddenStates) {
  const int64_t length = GetParam().states_prompt;
  const std::vector<int32_t> ids = tensors_->ids("input_ids." + std::to_string(length));
  auto session = engine_->open_session();
  std::set<int> seen;
  session->set_hidden_sink([&](int index, const float* values, int64_t rows, int64_t cols) {
    const std::string name = "hidden." + std::to_string(index);
    ASSERT_TRUE(tensors_->contains(name)) << name;
    const std::vector<float> expected = tensors_->floats(name);
    ASSERT_EQ(static_cast<int64_t>(expected.size()), rows * cols) << name;
    EXPECT_LE(golden::max_abs_difference(values, expected.data(), rows * cols),
              GetParam().relative_tolerance * golden::standard_deviation(expected))
        << name;
    EXPECT_TRUE(seen.insert(index).second) << name << " was given twice";
  });
  session->extend(ids);
  for (int index = 0; tensors_->contains("hidden." + std::to_string(index)); ++index)
    EXPECT_TRUE(seen.contains(index)) << "hidden." << index << " was not given";
  EXPECT_FALSE(seen.empty());
}

// The contract keeps the last W-1 inputs of a convolution, the golden file the last W: the common columns are compared.
void compare_state(const ExportedState& state, const Tensors& tensors) {
  ASSERT_TRUE(tensors.contains(state.name)) << state.name;
  const std::vector<float> expected = tensors.floats(state.name);
  const std::vector<int64_t> shape = tensors.shape(state.name);
  ASSERT_EQ(shape.size(), state.shape.size()) << state.name;
  double largest = 0.0;
  for (float v : expected) largest = std::max(largest, std::abs(static_cast<double>(v)));
  const int64_t columns = shape.back();
  const int64_t kept = state.shape.back();
  ASSERT_LE(kept, columns) << state.name;
  if (!state.name.ends_with(".conv") && state.name.find(".conv.") == std::string::npos) {
    ASSERT_EQ(shape, state.shape) << state.name;
  }
  const int64_t rows = static_cast<int64_t>(expected.size()) / columns;
  ASSERT_EQ(static_cast<int64_t>(state.values.size()), rows * kept) << state.name;
  for (int64_t r = 0; r < rows; ++r)
    ASSERT_LE(golden::max_abs_difference(state.values.data() + r * kept,
                                         expected.data() + r * columns + (columns - kept), kept),
              kStateTolerance * largest)
        << state.name << " row " << r;
}

// "state.2." of "state.2.key". The reference keeps nothing at all of some layers: recurrent_gemma's attention.
std::string layer_of(const std::string& state) { return state.substr(0, state.find('.', state.find('.') + 1) + 1); }

TEST_P(Parity, FinalStatesInEveryChunkSize) {
  const int64_t length = GetParam().states_prompt;
  const std::vector<int32_t> ids = tensors_->ids("input_ids." + std::to_string(length));
  for (int64_t chunk : {length, int64_t{7}, int64_t{3}, int64_t{1}}) {
    auto session = engine_->open_session();
    session->extend(ids, chunk);
    const std::vector<ExportedState> states = session->export_states();
    int compared = 0;
    for (const ExportedState& state : states) {
      if (!tensors_->contains_prefix(layer_of(state.name))) continue;
      compare_state(state, *tensors_);
      ++compared;
    }
    EXPECT_GT(compared, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, Parity, testing::ValuesIn(supported_folders()),
                         [](const testing::TestParamInfo<Folder>& info) { return info.param.name; });
// Of the same folders, those whose family runs there.
INSTANTIATE_TEST_SUITE_P(OnCuda, Parity, testing::ValuesIn(folders_on_cuda()),
                         [](const testing::TestParamInfo<Folder>& info) { return info.param.name; });

TEST(ParityCoverage, EverySupportedFamilyHasAFolderAndSkippedFoldersAreNamed) {
  std::set<std::string> covered;
  std::string skipped;
  for (const Folder& folder : golden::find_folders()) {
    if (is_supported(folder)) {
      covered.insert(folder.family);
      covered.insert(golden::container_of(folder.family));  // container_test.cc puts it there
    } else {
      skipped += " " + folder.name;
    }
  }
  for (const std::string& family : ModelRegistry::instance().names())
    EXPECT_TRUE(covered.contains(family)) << "no golden folder of family " << family;
  if (!skipped.empty()) std::cout << "[  SKIPPED ] folders of families that are not supported:" << skipped << "\n";
}

}  // namespace
}  // namespace coluber
