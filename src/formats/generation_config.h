// SPDX-License-Identifier: Apache-2.0
//
// generation_config.json: a model's own defaults for sampling and its list of end tokens. Everything is optional.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"

namespace coluber {

struct GenerationConfig {
  std::vector<int64_t> eos_token_id;  // empty: not given
  std::optional<int64_t> bos_token_id;
  std::optional<int64_t> pad_token_id;
  std::optional<bool> do_sample;
  std::optional<double> temperature;
  std::optional<int64_t> top_k;
  std::optional<double> top_p;
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;
  std::optional<double> presence_penalty;
  std::optional<double> frequency_penalty;
  std::optional<int64_t> max_new_tokens;
  std::optional<int64_t> max_length;
};

// Throws Error(kInvalidConfig) listing every value of a wrong type or range.
GenerationConfig parse_generation_config(const Json& json, const std::string& path);
// A file that is not there gives an empty one.
GenerationConfig read_generation_config(const std::string& path);

}  // namespace coluber
