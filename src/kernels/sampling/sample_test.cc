// SPDX-License-Identifier: Apache-2.0
#include "kernels/sampling/sample.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "kernels/op_test.h"
#include "kernels/sampling/random.h"

namespace coluber {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Logits as a model gives them: a bell with a few ahead; quarters, so that ties are everywhere.
std::vector<float> model_logits(int64_t vocab, uint64_t seed, bool with_ties = false) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<float> normal(0.0f, 2.0f);
  std::vector<float> logits(static_cast<size_t>(vocab));
  for (float& x : logits) {
    x = normal(generator);
    if (with_ties) x = std::round(x * 4.0f) / 4.0f;
  }
  return logits;
}

// The definition in sample.h, word for word, by sorting everything.
struct Naive {
  std::vector<float> logits;
  std::vector<std::pair<int32_t, double>> kept;  // in the order of the draw
  double total = 0;

  explicit Naive(const SampleInput& input) : logits(input.logits, input.logits + input.vocab) {
    const SamplingParams& p = input.params;
    std::map<int32_t, int> outputs;
    for (int32_t id : input.output_ids) ++outputs[id];
    std::map<int32_t, int> all = outputs;
    for (int32_t id : input.prompt_ids) ++all[id];
    for (auto [id, count] : all) {
      float& x = logits[static_cast<size_t>(id)];
      x = x > 0 ? x / p.repetition_penalty : x * p.repetition_penalty;
    }
    for (auto [id, count] : outputs) {
      float& x = logits[static_cast<size_t>(id)];
      x -= p.frequency_penalty * static_cast<float>(count);
      x -= p.presence_penalty;
    }
    for (int32_t id : input.banned_ids) logits[static_cast<size_t>(id)] = -kInfinity;
    restrict_to(p);
  }

  void restrict_to(const SamplingParams& p) {
    const double maximum = *std::max_element(logits.begin(), logits.end());
    for (size_t i = 0; i < logits.size(); ++i) {
      const double w = std::exp((logits[i] - maximum) / static_cast<double>(p.temperature));
      if (logits[i] > -kInfinity && w >= static_cast<double>(p.min_p)) kept.emplace_back(static_cast<int32_t>(i), w);
    }
    const bool whole = (p.top_k <= 0 || p.top_k >= static_cast<int64_t>(logits.size())) && p.top_p >= 1.0f;
    if (!whole) {
      std::stable_sort(kept.begin(), kept.end(), [&](const auto& a, const auto& b) {
        return logits[static_cast<size_t>(a.first)] > logits[static_cast<size_t>(b.first)];
      });
      if (p.top_k > 0 && static_cast<int64_t>(kept.size()) > p.top_k) kept.resize(static_cast<size_t>(p.top_k));
      double sum = 0, before = 0;
      for (const auto& [id, w] : kept) sum += w;
      size_t n = 0;
      while (n < kept.size() && (p.top_p >= 1.0f || before < static_cast<double>(p.top_p) * sum))
        before += kept[n++].second;
      kept.resize(n);
    }
    for (const auto& [id, w] : kept) total += w;
  }

  int32_t draw(double uniform) const {
    double running = 0;
    for (const auto& [id, w] : kept) {
      running += w;
      if (running > uniform * total) return id;
    }
    return kept.back().first;
  }
};

SamplingParams with(std::initializer_list<std::pair<float SamplingParams::*, float>> fields, int64_t top_k = 0) {
  SamplingParams params;
  for (auto [field, value] : fields) params.*field = value;
  params.top_k = top_k;
  return params;
}

std::vector<SamplingParams> many_params() {
  using P = SamplingParams;
  return {with({}),
          with({{&P::temperature, 0.3f}}),
          with({{&P::temperature, 3.0f}}),
          with({}, 1),
          with({}, 40),
          with({{&P::top_p, 0.9f}}),
          with({{&P::top_p, 0.999f}, {&P::temperature, 4.0f}}),
          with({{&P::top_p, 1e-6f}}),
          with({{&P::min_p, 0.05f}}),
          with({{&P::min_p, 1.0f}}),
          with({{&P::min_p, 0.02f}, {&P::top_p, 0.8f}}, 50),
          with({{&P::top_p, 0.95f}, {&P::temperature, 0.7f}}, 5000),
          with({{&P::repetition_penalty, 1.3f}, {&P::presence_penalty, 0.5f}, {&P::frequency_penalty, 0.25f}}, 20),
          with({{&P::repetition_penalty, 0.8f}, {&P::presence_penalty, -0.5f}, {&P::top_p, 0.7f}})};
}

TEST(SampleToken, EveryDrawIsTheOneOfTheDefinition) {
  const std::vector<int32_t> prompt = {3, 3, 17, 200, 5}, output = {17, 9, 9, 9, 250}, banned = {1, 40};
  SampleScratch scratch;
  for (int64_t vocab : {300, 1000, 20000}) {
    for (bool ties : {false, true}) {
      const std::vector<float> logits = model_logits(vocab, static_cast<uint64_t>(vocab), ties);
      for (const SamplingParams& params : many_params()) {
        SampleInput input{logits.data(), vocab, params, prompt, output, 5, 0, banned};
        const Naive naive(input);
        const uint64_t draws = vocab > 10000 ? 10 : 100;
        for (input.position = 0; input.position < draws; ++input.position) {
          const SampleResult result = sample_token(input, scratch);
          ASSERT_FALSE(result.non_finite);
          ASSERT_EQ(result.id, naive.draw(uniform_at(5, input.position)))
              << "vocabulary " << vocab << ", top-k " << params.top_k << ", top-p " << params.top_p << ", min-p "
              << params.min_p << ", temperature " << params.temperature << ", position " << input.position;
        }
      }
    }
  }
}

// Pearson's statistic over tokens that are expected often enough; the others are one class.
double chi_square(const Naive& naive, const std::map<int32_t, int>& seen, int draws, int* degrees) {
  double statistic = 0, rare_expected = 0, rare_seen = 0;
  *degrees = -1;
  for (const auto& [id, w] : naive.kept) {
    const double expected = w / naive.total * draws;
    const double found = seen.contains(id) ? seen.at(id) : 0;
    if (expected < 8) {
      rare_expected += expected;
      rare_seen += found;
      continue;
    }
    statistic += (found - expected) * (found - expected) / expected;
    ++*degrees;
  }
  if (rare_expected >= 8) {
    statistic += (rare_seen - rare_expected) * (rare_seen - rare_expected) / rare_expected;
    ++*degrees;
  }
  return statistic;
}

TEST(SampleToken, FrequenciesFollowTheDistribution) {
  constexpr int kDraws = 10000;
  const std::vector<float> logits = model_logits(500, 77);
  SampleScratch scratch;
  uint64_t seed = 0;
  for (const SamplingParams& params : many_params()) {
    SampleInput input{logits.data(), 500, params, {}, {}, ++seed, 0, {}};
    const Naive naive(input);
    for (bool by_seed : {false, true}) {  // positions of one seed, and one position of many seeds
      std::map<int32_t, int> seen;
      for (uint64_t i = 0; i < kDraws; ++i) {
        if (by_seed) {
          input.seed = i;
          input.position = 3;
        } else {
          input.position = i;
        }
        ++seen[sample_token(input, scratch).id];
      }
      int total = 0;
      for (const auto& [id, w] : naive.kept) total += seen.contains(id) ? seen[id] : 0;
      EXPECT_EQ(total, kDraws) << "a token outside of the restricted set was drawn";
      int degrees = 0;
      const double statistic = chi_square(naive, seen, kDraws, &degrees);
      // Mean k, deviation sqrt(2 k): five deviations, and room where k is small.
      EXPECT_LT(statistic, degrees + 5 * std::sqrt(2.0 * std::max(degrees, 0)) + 10)
          << degrees << " degrees, top-k " << params.top_k << ", top-p " << params.top_p;
    }
  }
}

TEST(SampleToken, DrawsOfOneSeedAreIndependent) {
  // Pairs of successive draws over four equal tokens: 16 classes.
  const std::vector<float> logits(4, 1.0f);
  const SamplingParams params;
  SampleScratch scratch;
  constexpr int kPairs = 32000;
  std::vector<int> seen(16, 0);
  for (uint64_t i = 0; i < kPairs; ++i) {
    SampleInput input{logits.data(), 4, params, {}, {}, 99, 2 * i, {}};
    const int32_t first = sample_token(input, scratch).id;
    ++input.position;
    ++seen[static_cast<size_t>(first * 4 + sample_token(input, scratch).id)];
  }
  double statistic = 0;
  for (int count : seen) statistic += (count - kPairs / 16.0) * (count - kPairs / 16.0) / (kPairs / 16.0);
  EXPECT_LT(statistic, 15 + 5 * std::sqrt(30.0));
}

TEST(SampleToken, GreedyTakesTheLowestIdOfTies) {
  SampleScratch scratch;
  for (float temperature : {0.0f, 1e-6f}) {
    for (int64_t vocab : {1, 2, 63, 64, 65, 1000}) {
      std::vector<float> logits(static_cast<size_t>(vocab), -1.0f);
      const SamplingParams params = with({{&SamplingParams::temperature, temperature}});
      EXPECT_EQ(sample_token({logits.data(), vocab, params, {}, {}}, scratch).id, 0) << vocab;
      logits.back() = 2.0f;
      EXPECT_EQ(sample_token({logits.data(), vocab, params, {}, {}}, scratch).id, vocab - 1) << vocab;
      logits[static_cast<size_t>(vocab / 2)] = 2.0f;
      EXPECT_EQ(sample_token({logits.data(), vocab, params, {}, {}}, scratch).id, vocab / 2) << vocab;
    }
  }
}

TEST(SampleToken, ZerosOfBothSignsAreTies) {
  SampleScratch scratch;
  std::vector<float> logits(5000, -9.0f);
  logits[10] = -0.0f;
  logits[4000] = 0.0f;
  EXPECT_EQ(sample_token({logits.data(), 5000, with({{&SamplingParams::temperature, 0.0f}}), {}, {}}, scratch).id, 10);
  for (int64_t top_k : {1, 4500}) {  // by heap and by radix
    SamplingParams params = with({{&SamplingParams::top_p, 1e-6f}}, top_k);
    EXPECT_EQ(sample_token({logits.data(), 5000, params, {}, {}}, scratch).id, 10);
  }
}

TEST(SampleToken, PenaltiesChangeTheGreedyChoice) {
  SampleScratch scratch;
  const std::vector<float> logits = {2.0f, 1.9f, -1.0f, -1.1f};
  SamplingParams params = with({{&SamplingParams::temperature, 0.0f}, {&SamplingParams::repetition_penalty, 1.1f}});
  const std::vector<int32_t> zero = {0}, zeros = {0, 0};
  EXPECT_EQ(sample_token({logits.data(), 4, params, {}, {}}, scratch).id, 0);
  EXPECT_EQ(sample_token({logits.data(), 4, params, zero, {}}, scratch).id, 1) << "repetition counts the prompt";
  params.repetition_penalty = 1.0f;
  params.presence_penalty = 0.2f;
  EXPECT_EQ(sample_token({logits.data(), 4, params, zero, {}}, scratch).id, 0) << "presence does not";
  EXPECT_EQ(sample_token({logits.data(), 4, params, {}, zero}, scratch).id, 1);
  params.presence_penalty = 0.0f;
  params.frequency_penalty = 0.06f;
  EXPECT_EQ(sample_token({logits.data(), 4, params, {}, zero}, scratch).id, 0);
  EXPECT_EQ(sample_token({logits.data(), 4, params, {}, zeros}, scratch).id, 1) << "frequency counts";
  const std::vector<int32_t> foreign = {-1, 4, 1 << 30};
  params.repetition_penalty = 2.0f;
  EXPECT_EQ(sample_token({logits.data(), 4, params, foreign, foreign}, scratch).id, 0) << "foreign ids are passed over";
  const std::vector<float> huge = {3e38f, 1.0f};
  params.repetition_penalty = 0.01f;
  EXPECT_EQ(sample_token({huge.data(), 2, params, zero, {}}, scratch).id, 0) << "no infinity of its own making";
}

TEST(SampleToken, NonFiniteLogitsGiveNoToken) {
  SampleScratch scratch;
  for (int64_t vocab : {1, 7, 100, 1000}) {
    for (float bad : {std::nanf(""), -std::nanf(""), kInfinity}) {
      for (int64_t at : {int64_t{0}, vocab / 2, vocab - 1}) {
        std::vector<float> logits(static_cast<size_t>(vocab), 0.5f);
        logits[static_cast<size_t>(at)] = bad;
        for (float temperature : {0.0f, 1.0f}) {
          const SampleResult result = sample_token(
              {logits.data(), vocab, with({{&SamplingParams::temperature, temperature}}), {}, {}}, scratch);
          EXPECT_TRUE(result.non_finite) << bad << " at " << at << " of " << vocab;
          EXPECT_EQ(result.id, -1);
        }
      }
    }
    const std::vector<float> nothing(static_cast<size_t>(vocab), -kInfinity);
    EXPECT_TRUE(sample_token({nothing.data(), vocab, SamplingParams{}, {}, {}}, scratch).non_finite);
  }
}

TEST(SampleToken, RuledOutTokensAreNeverDrawn) {
  SampleScratch scratch;
  std::vector<float> logits(700, -kInfinity);
  logits[699] = -1e30f;
  logits[3] = -1e30f;
  const std::vector<int32_t> banned = {3};
  for (const SamplingParams& params : many_params()) {
    for (uint64_t position = 0; position < 20; ++position) {
      EXPECT_EQ(sample_token({logits.data(), 700, params, {}, {}, 1, position, banned}, scratch).id, 699);
    }
  }
}

TEST(SampleToken, BiasesAllowedTokensAndMasksActTogetherAndLeaveNoTrace) {
  SampleScratch scratch;
  const std::vector<float> logits = model_logits(700, 6);
  std::vector<uint32_t> mask(22, 0);
  for (const int32_t id : {5, 64, 90, 699}) mask[static_cast<size_t>(id / 32)] |= uint32_t{1} << (id % 32);
  const std::vector<int32_t> banned = {5};
  for (SamplingParams params : many_params()) {
    SampleScratch fresh;
    const int32_t plain = sample_token({logits.data(), 700, params, {}, {}, 2, 9}, fresh).id;
    params.allowed_token_ids = {5, 90, 699, 300};
    for (uint64_t position = 0; position < 20; ++position) {
      const int32_t id = sample_token({logits.data(), 700, params, {}, {}, 2, position, banned, mask}, scratch).id;
      EXPECT_TRUE(id == 90 || id == 699) << id;
    }
    params.logit_bias = {{90, 100.0f}, {300, 50.0f}};
    EXPECT_EQ(sample_token({logits.data(), 700, params, {}, {}, 2, 9, banned, mask}, scratch).id, 90);
    const std::vector<int32_t> all = {5, 90, 699};
    const SampleResult none = sample_token({logits.data(), 700, params, {}, {}, 2, 9, all, mask}, scratch);
    EXPECT_TRUE(none.nothing_left);
    EXPECT_FALSE(none.non_finite);
    params.allowed_token_ids.clear();
    params.logit_bias.clear();
    EXPECT_EQ(sample_token({logits.data(), 700, params, {}, {}, 2, 9}, scratch).id, plain);
  }
}

TEST(ScoreToken, GivesTheLogprobsThatSamplingTells) {
  SampleScratch scratch;
  const std::vector<float> logits = model_logits(1000, 4);
  SamplingParams params = with({{&SamplingParams::temperature, 1.0f}}, 0);
  params.logprobs = 7;
  const SampleResult sampled = sample_token({logits.data(), 1000, params, {}, {}, 8, 0}, scratch);
  const SampleResult scored = score_token(logits.data(), 1000, sampled.id, 7, scratch);
  EXPECT_EQ(scored.logprob, sampled.logprob);
  ASSERT_EQ(scored.top_logprobs.size(), 7u);
  for (size_t i = 0; i < 7; ++i) EXPECT_EQ(scored.top_logprobs[i].id, sampled.top_logprobs[i].id);
  std::vector<float> broken = logits;
  broken[3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(score_token(broken.data(), 1000, 1, 7, scratch).non_finite);
}

TEST(SampleToken, LogprobsAreOfTheRawLogits) {
  SampleScratch scratch;
  const std::vector<float> logits = model_logits(1000, 4, true);
  double sum = 0;
  for (float x : logits) sum += std::exp(static_cast<double>(x));
  SamplingParams params = with({{&SamplingParams::temperature, 0.2f}, {&SamplingParams::repetition_penalty, 5.0f}}, 3);
  params.logprobs = 5;
  const std::vector<int32_t> prompt = {1, 2, 3};
  const SampleResult result = sample_token({logits.data(), 1000, params, prompt, {}, 8, 0}, scratch);
  EXPECT_NEAR(result.logprob, logits[static_cast<size_t>(result.id)] - std::log(sum), 1e-5);
  ASSERT_EQ(result.top_logprobs.size(), 5u);
  std::vector<int32_t> order(1000);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  });
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(result.top_logprobs[i].id, order[i]);
    EXPECT_NEAR(result.top_logprobs[i].logprob, logits[static_cast<size_t>(order[i])] - std::log(sum), 1e-5);
  }
  params.logprobs = 0;
  EXPECT_TRUE(sample_token({logits.data(), 1000, params, prompt, {}, 8, 0}, scratch).top_logprobs.empty());
}

TEST(SampleToken, ReusedScratchLeavesNoTrace) {
  SampleScratch scratch;
  const std::vector<float> large = model_logits(3000, 1), small = model_logits(200, 2);
  const std::vector<int32_t> ids = {1, 2, 3, 3, 2999};
  const SamplingParams penal =
      with({{&SamplingParams::repetition_penalty, 2.0f}, {&SamplingParams::frequency_penalty, 1.0f}}, 30);
  for (uint64_t position = 0; position < 30; ++position) {
    SampleScratch fresh;
    const SampleInput first{large.data(), 3000, penal, ids, ids, 1, position},
        second{small.data(), 200, penal, {}, {}, 1, position};
    EXPECT_EQ(sample_token(first, scratch).id, sample_token(first, fresh).id);
    EXPECT_EQ(sample_token(second, scratch).id, sample_token(second, fresh).id);
  }
}

TEST(UniformAt, KnownValuesHoldOnEveryMachine) {
  // From an independent computation of the definition in exact integers.
  EXPECT_EQ(uniform_at(0, 0), 0x1.0p-53 * static_cast<double>(1249383295688599LL));
  EXPECT_EQ(uniform_at(42, 7), 0x1.0p-53 * static_cast<double>(71765106869605LL));
  EXPECT_EQ(uniform_at(~0ULL, 123456789), 0x1.0p-53 * static_cast<double>(7760685709050167LL));
}

}  // namespace
}  // namespace coluber
