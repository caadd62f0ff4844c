// SPDX-License-Identifier: Apache-2.0
//
// The families' tiny checkpoints in tests/data (every folder with a golden.json), and short ways to run them.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/source_folder_test.h"
#include "coluber/error.h"
#include "coluber/registry.h"
#include "coluber/session.h"
#include "engine/description.h"

namespace coluber::families {

inline std::vector<std::string> find_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(source_folder() + "/tests/data"))
    if (std::filesystem::exists(entry.path() / "golden.json")) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

inline const std::vector<std::string>& names() {
  static const std::vector<std::string> kNames = find_names();
  return kNames;
}

// Behind a family's name, in this order: states of whole numbers and attention pages of bytes; with replay on; states
// and attention pages from one pool; on a CUDA device.
inline constexpr std::string_view kInt16 = "_int16", kInt8 = "_int8", kReplay = "_replay", kShared = "_shared",
                                  kCuda = "_cuda";
inline bool replays(std::string_view name) { return name.ends_with(kReplay); }
inline bool shares(std::string_view name) { return name.ends_with(kShared); }

inline EngineOptions options_for(const std::string& name) {
  EngineOptions options;
  std::string folder = name;
  const auto takes = [&folder](std::string_view suffix) {
    const bool has = folder.ends_with(suffix);
    if (has) folder.resize(folder.size() - suffix.size());
    return has;
  };
  if (takes(kCuda)) options.device = "cuda";
  if (takes(kShared)) options.cache_layout = CacheLayout::kShared;
  if (takes(kReplay)) options.use_replayssm = ReplayMode::kOn;
  if (takes(kInt16)) {
    options.mamba_ssm_cache_dtype = DType::kInt16;
    options.kv_cache_dtype = DType::kInt8;
  } else if (takes(kInt8)) {
    options.mamba_ssm_cache_dtype = DType::kInt8;
    options.kv_cache_dtype = DType::kFloat8E4M3;
  }
  options.model = source_folder() + "/tests/data/" + folder;
  options.num_threads = 2;
  options.seed = 1;
  return options;
}

// Those of `names` that can run under the name with `suffix` behind it; a family that cannot is refused by its config.
inline std::vector<std::string> runnable_with(std::string_view suffix, const std::vector<std::string>& names) {
  std::vector<std::string> found;
  for (const std::string& name : names) {
    try {
      const std::string changed = name + std::string(suffix);
      describe_model(options_for(changed));
      found.push_back(changed);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kInvalidConfig) throw;
    }
  }
  return found;
}

// Whether every layer says what it keeps on one of so many tensor-parallel ranks.
inline bool can_be_shared(const EngineOptions& options, int64_t ranks) {
  const ModelDescription model = describe_model(options);
  model.config->parallel.tensor_parallel_size = ranks;
  try {
    for (const AttentionLayerBase* layer : model.config->layers) layer->get_kv_cache_spec(*model.config);
    return true;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidConfig) throw;
    return false;
  }
}

// The families whose layers can replay, by a name that says so.
inline const std::vector<std::string>& replaying_names() {
  static const std::vector<std::string> kNames = runnable_with(kReplay, names());
  return kNames;
}

// Families in cache layout shared, by a name that says so: some of each kind of layer, or all that can with
// COLUBER_ALL_LAYOUTS=1.
inline const std::vector<std::string>& sharing_names() {
  static const std::vector<std::string> kNames = [] {
    const std::vector<std::string> few = {"falcon_h1_bf16", "jamba_bf16",      "lfm2",     "mamba2",
                                          "minimax",        "qwen3_next_bf16", "rwkv7_fla"};
    return runnable_with(kShared, std::getenv("COLUBER_ALL_LAYOUTS") != nullptr ? names() : few);
  }();
  return kNames;
}

// Families that run on CUDA devices, by a name that says so.
inline const std::vector<std::string>& names_on_cuda() {
  static const std::vector<std::string> kNames = [] {
    std::vector<std::string> found;
    for (const std::string& name : names()) {
      const std::string architecture = describe_model(options_for(name)).model->info().architecture;
      const ModelFamily* family = ModelRegistry::instance().find(architecture);
      if (family != nullptr && family->runs_on_cuda) found.push_back(name + std::string(kCuda));
    }
    return found;
  }();
  return kNames;
}

// Families with states of whole numbers: all as int16; as int8, and from one pool, some of each kind of layer.
inline const std::vector<std::string>& narrow_names() {
  static const std::vector<std::string> kNames = [] {
    std::vector<std::string> found = runnable_with(kInt16, names());
    const std::vector<std::string> few = {"falcon_h1_bf16", "jamba_bf16", "minimax", "qwen3_next_bf16", "rwkv7_fla"};
    for (const std::string& suffix : {std::string(kInt8), std::string(kInt16) + std::string(kShared)})
      for (std::string& name : runnable_with(suffix, few)) found.push_back(std::move(name));
    return found;
  }();
  return kNames;
}

// Distinct, reproducible ids below 250 (every test vocabulary is larger).
inline std::vector<int32_t> prompt_of(int64_t length, uint32_t seed = 1) {
  std::vector<int32_t> ids;
  uint32_t state = seed * 2654435761u + 12345u;
  for (int64_t i = 0; i < length; ++i) {
    state = state * 1664525u + 1013904223u;
    ids.push_back(static_cast<int32_t>((state >> 8) % 250u));
  }
  return ids;
}

inline std::vector<float> logits_of(Session& session, std::span<const int32_t> ids, int64_t chunk = 0) {
  std::vector<float> logits;
  session.extend(ids, chunk, [&](const float* values, int64_t rows) {
    const int64_t vocab = static_cast<int64_t>(session.last_logits().size());
    logits.insert(logits.end(), values, values + rows * vocab);
  });
  return logits;
}

inline SamplingParams greedy(int64_t tokens) {
  SamplingParams params;
  params.temperature = 0.0f;
  params.ignore_eos = true;
  params.max_tokens = tokens;
  return params;
}

inline std::vector<int32_t> ids_of(const RequestOutput& output) {
  std::vector<int32_t> ids;
  for (const TokenOutput& token : output.tokens) ids.push_back(token.id);
  return ids;
}

}  // namespace coluber::families
