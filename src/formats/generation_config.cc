// SPDX-License-Identifier: Apache-2.0
#include "formats/generation_config.h"

#include "base/mapped_file.h"
#include "formats/hf_config.h"

namespace coluber {

GenerationConfig parse_generation_config(const Json& json, const std::string& path) {
  GenerationConfig config;
  ConfigFields fields(json, path);
  fields.list_or_one("eos_token_id", &config.eos_token_id, at_least(0))
      .optional("bos_token_id", &config.bos_token_id)
      .optional("pad_token_id", &config.pad_token_id)
      .optional("do_sample", &config.do_sample)
      .optional("temperature", &config.temperature, between(0, 1e6))
      .optional("top_k", &config.top_k, at_least(-1))
      .optional("top_p", &config.top_p, between(0, 1))
      .optional("min_p", &config.min_p, between(0, 1))
      .optional("repetition_penalty", &config.repetition_penalty, positive_finite())
      .optional("presence_penalty", &config.presence_penalty, finite())
      .optional("frequency_penalty", &config.frequency_penalty, finite())
      .optional("max_new_tokens", &config.max_new_tokens, at_least(0))
      .optional("max_length", &config.max_length, at_least(0))
      .finish();
  return config;
}

GenerationConfig read_generation_config(const std::string& path) {
  if (!file_exists(path)) return {};
  return parse_generation_config(read_config_file(path), path);
}

}  // namespace coluber
