// SPDX-License-Identifier: Apache-2.0
#include "kernels/rope/rope.h"

#include <numbers>

#include "base/error.h"
#include "kernels/op_test.h"

namespace coluber {
namespace {

struct Case {
  int64_t q_heads, k_heads, head_dim, rotary_dim;
  bool interleaved;
};

std::vector<OpOutput> run(RopeFunction f, const Case& c, const std::vector<int64_t>& positions, ThreadPool& pool) {
  const int64_t tokens = static_cast<int64_t>(positions.size());
  const RopeFrequencies turns =
      rope_frequencies({.theta = 10000.0, .rotary_dim = c.rotary_dim, .interleaved = c.interleaved}, c.head_dim);
  const int64_t padding = 5;  // rows that are strided
  RopeArgs args;
  args.q_stride = c.q_heads * c.head_dim + padding;
  args.k_stride = c.k_heads * c.head_dim + padding;
  std::vector<float> q = random_floats(tokens * args.q_stride, -2, 2, 11);
  std::vector<float> k = random_floats(tokens * args.k_stride, -2, 2, 12);
  args.q = q.data();
  args.k = k.data();
  args.num_q_heads = c.q_heads;
  args.num_k_heads = c.k_heads;
  args.head_dim = c.head_dim;
  args.rotary_dim = c.rotary_dim;
  args.interleaved = c.interleaved;
  args.frequencies = turns.frequencies.data();
  args.positions = positions.data();
  args.num_tokens = tokens;
  Workspace workspace;
  f(args, pool, workspace);
  return {{"q", std::move(q)}, {"k", std::move(k)}};
}

TEST(Rope, CandidatesAgreeOverShapes) {
  ThreadPool pool(2);
  std::vector<int64_t> positions = {0, 1, 2, 77, 4096, 131071, 1000000};
  for (int64_t i = 0; i < 40; ++i) positions.push_back(i * 3);
  for (bool interleaved : {false, true}) {
    for (const Case& c :
         {Case{4, 2, 16, 16, interleaved}, Case{3, 1, 12, 12, interleaved}, Case{2, 2, 64, 32, interleaved},
          Case{1, 0, 10, 6, interleaved}, Case{2, 1, 128, 128, interleaved}}) {
      SCOPED_TRACE("rotary dim " + std::to_string(c.rotary_dim) + (interleaved ? " interleaved" : ""));
      expect_candidates_agree(rope(), kRopeTolerance, [&](RopeFunction f) { return run(f, c, positions, pool); });
    }
  }
}

TEST(Rope, PositionZeroAndTheUnrotatedPartStay) {
  ThreadPool pool(1);
  const Case c{2, 1, 64, 16, false};
  for (const auto& candidate : rope().candidates()) {
    if (candidate.isa > active_isa()) continue;
    const std::vector<float> untouched = random_floats(2 * (2 * 64 + 5), -2, 2, 11);
    const std::vector<float> q = run(candidate.function, c, {0, 9}, pool)[0].values;
    for (size_t i = 0; i < 133; ++i) EXPECT_EQ(q[i], untouched[i]) << candidate.name << " position 0, " << i;
    for (size_t h = 0; h < 2; ++h) {
      for (size_t d = 0; d < 64; ++d) {
        const size_t i = 133 + h * 64 + d;
        if (d >= 16) {
          EXPECT_EQ(q[i], untouched[i]) << candidate.name;
        } else {
          EXPECT_NE(q[i], untouched[i]) << candidate.name;
        }
      }
    }
  }
}

TEST(Rope, ScoresDependOnTheDistanceAlone) {
  ThreadPool pool(1);
  const Case c{1, 1, 32, 32, false};
  auto score = [&](int64_t query, int64_t key) {
    const std::vector<OpOutput> out = run(rope().selected().function, c, {query, key}, pool);
    double sum = 0;
    for (size_t d = 0; d < 32; ++d) sum += static_cast<double>(out[0].values[d]) * out[1].values[37 + d];
    return sum;
  };
  EXPECT_NEAR(score(7, 3), score(1007, 1003), 1e-5);
  EXPECT_GT(std::fabs(score(7, 3) - score(7, 5)), 1e-3);
}

TEST(RopeFrequencies, LinearDividesAllByTheFactor) {
  const auto plain = rope_frequencies({.rotary_dim = 8}, 8);
  const auto scaled = rope_frequencies({.type = RopeType::kLinear, .rotary_dim = 8, .factor = 4.0}, 8);
  ASSERT_EQ(plain.frequencies.size(), 4u);
  EXPECT_DOUBLE_EQ(plain.frequencies[2], 0.01);
  for (size_t i = 0; i < 4; ++i) EXPECT_DOUBLE_EQ(scaled.frequencies[i], plain.frequencies[i] / 4.0);
}

TEST(RopeFrequencies, Llama3KeepsShortWavesAndStretchesLongOnes) {
  const RopeConfig config{.type = RopeType::kLlama3,
                          .theta = 500000.0,
                          .rotary_dim = 128,
                          .factor = 8.0,
                          .low_freq_factor = 1.0,
                          .high_freq_factor = 4.0,
                          .original_max_position_embeddings = 8192};
  const auto plain = rope_frequencies({.theta = 500000.0, .rotary_dim = 128}, 128).frequencies;
  const auto scaled = rope_frequencies(config, 128).frequencies;
  int mixed = 0;
  for (size_t i = 0; i < plain.size(); ++i) {
    const double wavelength = 2 * std::numbers::pi / plain[i];
    if (wavelength < 2048) {
      EXPECT_DOUBLE_EQ(scaled[i], plain[i]);
    } else if (wavelength > 8192) {
      EXPECT_DOUBLE_EQ(scaled[i], plain[i] / 8);
    } else {
      EXPECT_LT(scaled[i], plain[i]);
      EXPECT_GT(scaled[i], plain[i] / 8);
      ++mixed;
    }
  }
  EXPECT_GT(mixed, 0);
}

TEST(RopeFrequencies, YarnRampsBetweenKeptAndStretched) {
  const RopeConfig config{.type = RopeType::kYarn,
                          .theta = 10000.0,
                          .rotary_dim = 128,
                          .factor = 4.0,
                          .original_max_position_embeddings = 4096};
  const auto plain = rope_frequencies({.rotary_dim = 128}, 128).frequencies;
  const RopeFrequencies scaled = rope_frequencies(config, 128);
  EXPECT_NEAR(scaled.attention_factor, 0.1 * std::log(4.0) + 1.0, 1e-12);
  EXPECT_DOUBLE_EQ(scaled.frequencies.front(), plain.front());
  EXPECT_DOUBLE_EQ(scaled.frequencies.back(), plain.back() / 4.0);
  // Dimensions 20.. to 46 are the ramp: 64 ln(4096 / (32 * 2 pi)) / ln 10000 = 20.9, 64 ln(4096 / (2 pi)) / ln 10000
  // = 45.03.
  EXPECT_DOUBLE_EQ(scaled.frequencies[20], plain[20]);
  EXPECT_NEAR(scaled.frequencies[33] / plain[33], 0.25 * 0.5 + 0.5, 1e-12);
  EXPECT_DOUBLE_EQ(scaled.frequencies[46], plain[46] / 4.0);
}

TEST(RopeFrequencies, YarnTakesItsMagnitudeFromTheMostParticularField) {
  RopeConfig config{.type = RopeType::kYarn,
                    .theta = 10000.0,
                    .rotary_dim = 128,
                    .factor = 4.0,
                    .original_max_position_embeddings = 4096};
  config.mscale = 1.0;  // one of the pair alone says nothing
  EXPECT_NEAR(rope_frequencies(config, 128).attention_factor, 0.1 * std::log(4.0) + 1.0, 1e-12);
  config.mscale_all_dim = 0.5;
  EXPECT_NEAR(rope_frequencies(config, 128).attention_factor, (0.1 * std::log(4.0) + 1) / (0.05 * std::log(4.0) + 1),
              1e-12);
  config.attention_factor = 1.25;
  EXPECT_EQ(rope_frequencies(config, 128).attention_factor, 1.25);
}

TEST(RopeFrequencies, YarnRampsBetweenPartsOfADimensionWithoutTruncation) {
  const auto plain = rope_frequencies({.rotary_dim = 128}, 128).frequencies;
  RopeConfig config{.type = RopeType::kYarn,
                    .theta = 10000.0,
                    .rotary_dim = 128,
                    .factor = 4.0,
                    .original_max_position_embeddings = 4096};
  config.truncate = false;
  const auto scaled = rope_frequencies(config, 128).frequencies;
  const double low = 64 * std::log(4096 / (32 * 2 * std::numbers::pi)) / std::log(10000.0);
  const double high = 64 * std::log(4096 / (2 * std::numbers::pi)) / std::log(10000.0);
  for (size_t i : {21, 33, 45}) {
    const double stretched = (static_cast<double>(i) - low) / (high - low);
    EXPECT_NEAR(scaled[i] / plain[i], 1 - 0.75 * stretched, 1e-12) << i;
  }
}

TEST(RopeFrequencies, LongRopeDividesEachAndMakesUpForItInMagnitude) {
  const auto plain = rope_frequencies({.rotary_dim = 8}, 8).frequencies;
  RopeConfig config{.type = RopeType::kLongRope,
                    .rotary_dim = 8,
                    .factor = 4.0,
                    .original_max_position_embeddings = 16,
                    .divisors = {1.0, 1.5, 3.0, 8.0},
                    .long_divisors = {2.0, 4.0, 6.0, 9.0}};
  const RopeFrequencies scaled = rope_frequencies(config, 8);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_DOUBLE_EQ(scaled.frequencies[i], plain[i] / config.divisors[i]);
    EXPECT_DOUBLE_EQ(scaled.long_frequencies[i], plain[i] / config.long_divisors[i]);
  }
  EXPECT_NEAR(scaled.attention_factor, std::sqrt(1.5), 1e-12);
  config.attention_factor = 1.25;
  EXPECT_EQ(rope_frequencies(config, 8).attention_factor, 1.25);
  config.divisors.pop_back();
  EXPECT_THROW(rope_frequencies(config, 8), Error);
}

TEST(RopeFrequencies, SenselessFieldsAreAllNamed) {
  try {
    rope_frequencies({.type = RopeType::kLlama3, .theta = -1.0, .rotary_dim = 7, .factor = 0.5}, 8);
    FAIL() << "expected an error";
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(error.code(), ErrorCode::kInvalidConfig);
    for (const char* word : {"rotary dim", "7", "rope_theta", "factor", "original_max_position_embeddings"}) {
      EXPECT_NE(message.find(word), std::string::npos) << word << " in: " << message;
    }
  }
  EXPECT_FALSE(parse_rope_type("dynamic"));
  EXPECT_EQ(parse_rope_type("yarn"), RopeType::kYarn);
}

TEST(Rope, RunsVectorised) { expect_vectorised(rope()); }

}  // namespace
}  // namespace coluber
