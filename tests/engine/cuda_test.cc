// SPDX-License-Identifier: Apache-2.0
//
// Engines on a CUDA device: activations rounded to 16 bits stay near float32 however a prompt is cut and whatever came
// from the cache, and a step recorded as a CUDA graph has the bits of its kernels launched one by one.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "engine/decode_graphs.h"
#include "model_copy.h"
#include "tensor/cuda_library.h"

namespace coluber {
namespace {

using families::greedy;
using families::logits_of;
using families::prompt_of;

// Root mean square over all logits, in standard deviations of float32's.
constexpr double kRoundedBound = 3e-2;

double relative_difference(const std::vector<float>& got, const std::vector<float>& want) {
  if (got.size() != want.size()) return std::numeric_limits<double>::infinity();
  double mean = 0, squares = 0, difference = 0;
  for (const float value : want) mean += value;
  mean /= static_cast<double>(want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    squares += (want[i] - mean) * (want[i] - mean);
    difference += (static_cast<double>(got[i]) - want[i]) * (static_cast<double>(got[i]) - want[i]);
  }
  return std::sqrt(difference / squares);
}

// Logarithms of probabilities of every token of every request, requests coming and going.
std::map<RequestId, std::vector<float>> answers_of(Engine& engine) {
  std::map<RequestId, std::vector<float>> answers;
  const auto run = [&](int64_t steps) {
    for (int64_t i = 0; i < steps && engine.has_unfinished_requests(); ++i)
      for (const RequestOutput& output : engine.step()) {
        EXPECT_NE(output.finish_reason, FinishReason::kError) << output.error;
        for (const TokenOutput& token : output.tokens) {
          answers[output.id].push_back(static_cast<float>(token.id));
          for (const TokenLogprob& top : token.top_logprobs) answers[output.id].push_back(top.logprob);
        }
      }
  };
  uint32_t seed = 1;
  for (const int64_t wave : {1, 2, 5, 9, 17}) {
    for (int64_t i = 0; i < wave; ++i) {
      SamplingParams params = greedy(6 + 5 * i % 17);
      params.logprobs = 5;
      engine.add_request({prompt_of(1 + 11 * i % 97, seed++), params});
    }
    run(8);
  }
  run(1000);
  return answers;
}

// The same with steps recorded and kernel by kernel, twice over: some sizes are recorded in the first round already.
void expect_bits_of_single_kernels(const EngineOptions& recorded) {
  EngineOptions eager = recorded;
  eager.enforce_eager = true;
  const auto one = Engine::load(recorded), other = Engine::load(eager);
  for (int round = 0; round < 2; ++round) EXPECT_EQ(answers_of(*one), answers_of(*other)) << "round " << round;
  EXPECT_GT(one->stats().graph_steps, 10);
  EXPECT_EQ(other->stats().graph_steps, 0);
}

class OnCuda : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    std::string missing;
    if (CudaLibrary::find(&missing) == nullptr) GTEST_SKIP() << missing;
    copy_ = std::make_unique<ModelCopy>("mamba2");
    copy_->convert_all(GetParam());
    copy_->write_all();
  }
  EngineOptions options(const std::string& dtype) const {
    EngineOptions options = copy_->options();
    options.device = "cuda";
    options.dtype = dtype;
    options.poison_pools = true;
    options.max_num_seqs = 40;
    options.kv_cache_memory_bytes = int64_t{256} << 20;
    return options;
  }

  std::unique_ptr<ModelCopy> copy_;
};

TEST_P(OnCuda, RoundedActivationsStayNearFloat32HoweverAPromptIsCut) {
  const auto exact = Engine::load(options("float32")), rounded = Engine::load(options("auto"));
  const std::vector<int32_t> prompt = prompt_of(300);
  const std::vector<float> want = logits_of(*exact->open_session(), prompt);
  for (const int64_t chunk : {300, 128, 64, 33, 7, 1}) {
    const std::vector<float> got = logits_of(*rounded->open_session(), prompt, chunk);
    const double difference = relative_difference(got, want);
    EXPECT_LE(difference, kRoundedBound) << "in chunks of " << chunk;
    const bool is_narrow = GetParam() != DType::kFloat32;
    EXPECT_TRUE(is_narrow || difference <= 1e-5) << "float32 weights are not rounded; in chunks of " << chunk;
    EXPECT_TRUE(!is_narrow || difference > 0) << "nothing was rounded in chunks of " << chunk;
  }
}

TEST_P(OnCuda, DeterministicEnginesRoundNothing) {
  EngineOptions deterministic = options("auto");
  deterministic.deterministic = true;
  const auto engine = Engine::load(deterministic);
  const std::vector<int32_t> prompt = prompt_of(200);
  const std::vector<float> want = logits_of(*engine->open_session(), prompt);
  for (const int64_t chunk : {64, 7, 1}) EXPECT_EQ(logits_of(*engine->open_session(), prompt, chunk), want);
  EXPECT_EQ(logits_of(*Engine::load(options("float32"))->open_session(), prompt), want);
}

TEST_P(OnCuda, WhatCameFromTheCacheChangesNoMoreThanACut) {
  const auto exact = Engine::load(options("float32")), rounded = Engine::load(options("auto"));
  const std::vector<int32_t> prompt = prompt_of(260);
  std::vector<std::vector<float>> answers;
  for (Engine* engine : {exact.get(), rounded.get(), rounded.get()}) {  // the last finds the prompt in the cache
    SamplingParams params = greedy(1);
    params.logprobs = 20;
    const RequestId id = engine->add_request({prompt, params});
    std::vector<float> tops(static_cast<size_t>(engine->model_info().vocab_size), 0.0f);
    while (engine->has_unfinished_requests())
      for (const RequestOutput& output : engine->step())
        if (output.id == id)
          for (const TokenOutput& token : output.tokens)
            for (const TokenLogprob& top : token.top_logprobs) tops[static_cast<size_t>(top.id)] = top.logprob;
    answers.push_back(std::move(tops));
  }
  EXPECT_GT(rounded->stats().hit_tokens, 0);
  for (size_t i = 1; i < answers.size(); ++i) {
    for (size_t id = 0; id < answers[0].size(); ++id) {
      const bool in_both = answers[i][id] != 0.0f && answers[0][id] != 0.0f;
      EXPECT_TRUE(!in_both || std::abs(answers[i][id] - answers[0][id]) < 0.15)
          << (i == 1 ? "cold" : "warm") << ", id " << id << ": " << answers[i][id] << " for " << answers[0][id];
    }
  }
}

TEST_P(OnCuda, RecordedStepsHaveTheBitsOfKernelsOneByOne) {
  for (const char* dtype : {"float32", "auto"})
    for (const bool deterministic : {false, true}) {
      SCOPED_TRACE(testing::Message() << dtype << (deterministic ? ", deterministic" : ""));
      EngineOptions recorded = options(dtype);
      recorded.deterministic = deterministic;
      expect_bits_of_single_kernels(recorded);
    }
}

INSTANTIATE_TEST_SUITE_P(Weights, OnCuda, testing::Values(DType::kBFloat16, DType::kFloat16, DType::kFloat32),
                         [](const auto& info) { return std::string(dtype_name(info.param)); });

class FamiliesOnCuda : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    std::string missing;
    if (CudaLibrary::find(&missing) == nullptr) GTEST_SKIP() << missing;
  }
};

EngineOptions small_pages(EngineOptions options) {
  options.device = "cuda";
  options.poison_pools = true;
  options.max_num_seqs = 40;
  options.kv_cache_memory_bytes = int64_t{256} << 20;
  options.block_size = 4;  // 64 tokens are 16 columns of a page table: longer sequences have steps of another size
  return options;
}

TEST_P(FamiliesOnCuda, RecordedStepsHaveTheBitsOfKernelsOneByOne) {
  for (const char* dtype : {"float32", "auto"}) {
    SCOPED_TRACE(dtype);
    EngineOptions options = small_pages(families::options_for(GetParam()));
    options.dtype = dtype;
    expect_bits_of_single_kernels(options);
  }
}

INSTANTIATE_TEST_SUITE_P(All, FamiliesOnCuda, testing::ValuesIn(families::names_on_cuda()),
                         [](const auto& info) { return info.param; });

// The device then tells the host no more than the id; beside a request that wants more, the host chooses for all.
TEST_P(FamiliesOnCuda, GreedyTokensAreThoseThatTheHostChooses) {
  const auto engine = Engine::load(small_pages(families::options_for(GetParam())));
  const auto tokens_of = [&](const std::vector<std::optional<int>>& logprobs) {
    std::map<RequestId, std::vector<int32_t>> tokens;
    RequestId first = 0;
    for (size_t i = 0; i < logprobs.size(); ++i) {
      SamplingParams params = greedy(12);
      params.logprobs = logprobs[i];
      const RequestId id = engine->add_request({prompt_of(5 + static_cast<int64_t>(i), 3), params});
      if (i == 0) first = id;
    }
    while (engine->has_unfinished_requests())
      for (const RequestOutput& output : engine->step())
        for (const TokenOutput& token : output.tokens) tokens[output.id - first].push_back(token.id);
    return tokens;
  };
  const auto want = tokens_of({1, 1, 1});
  EXPECT_EQ(want.size(), 3u);
  EXPECT_EQ(tokens_of({{}, {}, {}}), want);
  EXPECT_EQ(tokens_of({{}, 1, {}}), want);
}

// vllm#34571: more sequences allowed than states fit, so that padded steps have more rows than there are states.
TEST(GraphsOnCuda, RowsMayBeMoreThanStatesFit) {
  std::string missing;
  if (CudaLibrary::find(&missing) == nullptr) GTEST_SKIP() << missing;
  EngineOptions roomy = small_pages(families::options_for("mamba2"));
  roomy.max_num_seqs = DecodeGraphs::kMostRows;
  roomy.enable_prefix_caching = false;
  EngineOptions tight = roomy;
  tight.kv_cache_memory_bytes = int64_t{4} << 20;
  std::vector<std::vector<int32_t>> answers;
  for (const EngineOptions& options : {roomy, tight}) {
    const auto engine = Engine::load(options);
    std::map<RequestId, std::vector<int32_t>> tokens;
    for (int64_t i = 0; i < roomy.max_num_seqs; ++i)
      engine->add_request({prompt_of(1 + i % 7, static_cast<uint32_t>(i)), greedy(12)});
    int64_t most = 0;
    while (engine->has_unfinished_requests()) {
      for (const RequestOutput& output : engine->step())
        for (const TokenOutput& token : output.tokens) tokens[output.id].push_back(token.id);
      most = std::max(most, engine->stats().running);
    }
    EXPECT_EQ(most < roomy.max_num_seqs, options.kv_cache_memory_bytes < roomy.kv_cache_memory_bytes) << most;
    EXPECT_GT(engine->stats().graph_steps, 5);
    std::vector<int32_t>& all = answers.emplace_back();
    for (const auto& [id, ids] : tokens) all.insert(all.end(), ids.begin(), ids.end());
    EXPECT_EQ(std::ssize(all), 12 * roomy.max_num_seqs);
  }
  EXPECT_EQ(answers[0], answers[1]);
}

// Those of long sequences turn by other frequencies, which the host chooses: such steps are not recorded.
TEST(LongRopeOnCuda, RecordedStepsHaveTheBitsOfKernelsOneByOne) {
  std::string missing;
  if (CudaLibrary::find(&missing) == nullptr) GTEST_SKIP() << missing;
  ModelCopy copy("lfm2");
  const Json golden = read_json_file(source_folder() + "/tests/data/rope/rope.json");
  for (const Json& model : golden.at("models").as_array())
    if (model.at("name").as_string() == "longrope")
      for (const auto& [key, value] : model.at("config").as_object()) copy.config().set(key, value);
  copy.write_all();
  expect_bits_of_single_kernels(small_pages(copy.options()));
}

}  // namespace
}  // namespace coluber
