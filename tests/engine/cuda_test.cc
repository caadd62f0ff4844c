// SPDX-License-Identifier: Apache-2.0
//
// Engines on a CUDA device: activations rounded to 16 bits stay near float32 however a prompt is cut and whatever came
// from the cache, and a step recorded as a CUDA graph has the bits of its kernels launched one by one.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

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

  // Logarithms of probabilities of every token of every request, requests coming and going.
  static std::map<RequestId, std::vector<float>> answers_of(Engine& engine) {
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
      EngineOptions eager = recorded;
      eager.enforce_eager = true;
      const auto one = Engine::load(recorded), other = Engine::load(eager);
      for (int round = 0; round < 2; ++round) EXPECT_EQ(answers_of(*one), answers_of(*other)) << "round " << round;
      EXPECT_GT(one->stats().graph_steps, 10);
      EXPECT_EQ(other->stats().graph_steps, 0);
    }
}

INSTANTIATE_TEST_SUITE_P(Weights, OnCuda, testing::Values(DType::kBFloat16, DType::kFloat16, DType::kFloat32),
                         [](const auto& info) { return std::string(dtype_name(info.param)); });

}  // namespace
}  // namespace coluber
