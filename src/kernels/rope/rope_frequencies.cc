// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>
#include <utility>

#include "base/error.h"
#include "kernels/rope/rope.h"

namespace coluber {
namespace {

std::string problems_of(const RopeConfig& config, int64_t head_dim) {
  std::string problems;
  auto expect = [&](bool fine, const std::string& message) {
    if (!fine) problems += "\n  " + message;
  };
  auto finite_positive = [](double x) { return std::isfinite(x) && x > 0; };
  expect(config.rotary_dim > 0 && config.rotary_dim % 2 == 0 && config.rotary_dim <= head_dim,
         fmt::format("rotary dim: expected an even number from 2 to the head dim {}, found {}", head_dim,
                     config.rotary_dim));
  expect(finite_positive(config.theta) && config.theta > 1.0,
         fmt::format("rope_theta: expected a number above 1, found {}", config.theta));
  if (config.type == RopeType::kDefault) return problems;
  expect(finite_positive(config.factor) && config.factor >= 1.0,
         fmt::format("rope factor: expected a number of at least 1, found {}", config.factor));
  if (config.type == RopeType::kLinear) return problems;
  if (config.type == RopeType::kProportional) {
    expect(finite_positive(config.proportion) && config.proportion <= 1,
           fmt::format("partial_rotary_factor: expected a number above 0 and at most 1, found {}", config.proportion));
    return problems;
  }
  expect(config.original_max_position_embeddings > 0,
         fmt::format("original_max_position_embeddings: expected a positive number, found {}",
                     config.original_max_position_embeddings));
  if (config.type == RopeType::kLlama3) {
    expect(finite_positive(config.low_freq_factor) && finite_positive(config.high_freq_factor) &&
               config.low_freq_factor < config.high_freq_factor,
           fmt::format("low_freq_factor {} must be positive and below high_freq_factor {}", config.low_freq_factor,
                       config.high_freq_factor));
  } else if (config.type == RopeType::kLongRope) {
    expect(config.original_max_position_embeddings > 1,
           fmt::format("original_max_position_embeddings: expected a number above 1, found {}",
                       config.original_max_position_embeddings));
    for (const auto& [name, divisors] :
         {std::pair("short_factor", &config.divisors), std::pair("long_factor", &config.long_divisors)}) {
      expect(static_cast<int64_t>(divisors->size()) == config.rotary_dim / 2 &&
                 std::all_of(divisors->begin(), divisors->end(), finite_positive),
             fmt::format("{}: expected a positive number for each of {} pairs, found {} numbers", name,
                         config.rotary_dim / 2, divisors->size()));
    }
    expect(!config.attention_factor || finite_positive(*config.attention_factor),
           "attention_factor: expected a positive number");
  } else {
    expect(
        finite_positive(config.beta_slow) && finite_positive(config.beta_fast) && config.beta_slow <= config.beta_fast,
        fmt::format("beta_slow {} must be positive and at most beta_fast {}", config.beta_slow, config.beta_fast));
    expect(!config.attention_factor || finite_positive(*config.attention_factor),
           "attention_factor: expected a positive number");
    for (double mscale : {config.mscale, config.mscale_all_dim})
      expect(std::isfinite(mscale) && mscale >= 0,
             fmt::format("mscale and mscale_all_dim: expected a positive number, or 0 for none, found {}", mscale));
  }
  return problems;
}

// Long waves are stretched by the factor, short ones kept, those between mixed.
void scale_llama3(const RopeConfig& config, std::vector<double>& frequencies) {
  const double original = static_cast<double>(config.original_max_position_embeddings);
  for (double& frequency : frequencies) {
    const double wavelength = 2.0 * std::numbers::pi / frequency;
    if (wavelength < original / config.high_freq_factor) continue;
    if (wavelength > original / config.low_freq_factor) {
      frequency /= config.factor;
      continue;
    }
    const double kept =
        (original / wavelength - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor);
    frequency = (1.0 - kept) * frequency / config.factor + kept * frequency;
  }
}

// Peng et al., YaRN, 2023: dimensions that turn often over the original context are kept, slow ones stretched, a ramp
// between.
void scale_yarn(const RopeConfig& config, std::vector<double>& frequencies) {
  const double dim = static_cast<double>(config.rotary_dim);
  auto dimension_of = [&](double turns) {
    return dim *
           std::log(static_cast<double>(config.original_max_position_embeddings) / (turns * 2.0 * std::numbers::pi)) /
           (2.0 * std::log(config.theta));
  };
  double low = dimension_of(config.beta_fast);
  double high = dimension_of(config.beta_slow);
  if (config.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1.0);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double stretched = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] = frequencies[i] / config.factor * stretched + frequencies[i] * (1.0 - stretched);
  }
}

// Stretched positions flatten the softmax; queries and keys grow with the factor to make up for it.
double yarn_attention_factor(const RopeConfig& config) {
  if (config.attention_factor) return *config.attention_factor;
  auto magnitude = [&](double mscale) { return 0.1 * mscale * std::log(config.factor) + 1.0; };
  if (config.mscale > 0 && config.mscale_all_dim > 0)
    return magnitude(config.mscale) / magnitude(config.mscale_all_dim);
  return magnitude(1.0);
}

// Ding et al., LongRoPE, 2024: a divisor searched for each pair, one for short sequences and one for long ones.
void scale_longrope(const RopeConfig& config, RopeFrequencies& result) {
  result.long_frequencies = result.frequencies;
  for (size_t i = 0; i < result.frequencies.size(); ++i) {
    result.frequencies[i] /= config.divisors[i];
    result.long_frequencies[i] /= config.long_divisors[i];
  }
  const double original = static_cast<double>(config.original_max_position_embeddings);
  result.attention_factor =
      config.attention_factor.value_or(std::sqrt(1.0 + std::log(config.factor) / std::log(original)));
}

// The slow pairs stand still; the others turn as they would in a head that turns whole.
void scale_proportional(const RopeConfig& config, std::vector<double>& frequencies) {
  const auto turning = static_cast<size_t>(config.proportion * static_cast<double>(config.rotary_dim) / 2.0);
  for (size_t i = 0; i < frequencies.size(); ++i) frequencies[i] = i < turning ? frequencies[i] / config.factor : 0.0;
}

}  // namespace

std::optional<RopeType> parse_rope_type(std::string_view name) noexcept {
  if (name == "default") return RopeType::kDefault;
  if (name == "linear") return RopeType::kLinear;
  if (name == "llama3") return RopeType::kLlama3;
  if (name == "yarn") return RopeType::kYarn;
  if (name == "longrope") return RopeType::kLongRope;
  if (name == "proportional") return RopeType::kProportional;
  return std::nullopt;
}

RopeFrequencies rope_frequencies(const RopeConfig& config, int64_t head_dim) {
  if (std::string problems = problems_of(config, head_dim); !problems.empty()) {
    throw make_error(ErrorCode::kInvalidConfig, "rotary embedding:{}", problems);
  }
  RopeFrequencies result;
  for (int64_t i = 0; i < config.rotary_dim / 2; ++i) {
    result.frequencies.push_back(
        std::pow(config.theta, -2.0 * static_cast<double>(i) / static_cast<double>(config.rotary_dim)));
  }
  switch (config.type) {
    case RopeType::kDefault:
      break;
    case RopeType::kLinear:
      for (double& frequency : result.frequencies) frequency /= config.factor;
      break;
    case RopeType::kLlama3:
      scale_llama3(config, result.frequencies);
      break;
    case RopeType::kYarn:
      scale_yarn(config, result.frequencies);
      result.attention_factor = yarn_attention_factor(config);
      break;
    case RopeType::kLongRope:
      scale_longrope(config, result);
      break;
    case RopeType::kProportional:
      scale_proportional(config, result.frequencies);
      break;
  }
  return result;
}

}  // namespace coluber
