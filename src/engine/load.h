// SPDX-License-Identifier: Apache-2.0
//
// From options to a model: resolves the folder, reads the configs, finds the family, checks sizes against memory and
// loads. `describe_model` stops before the weights are packed.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "cache/state_tag.h"
#include "coluber/engine.h"
#include "coluber/registry.h"
#include "formats/generation_config.h"
#include "tensor/device.h"
#include "text/chat_template/chat_template.h"
#include "text/tokenizer/tokenizer.h"

namespace coluber {

// Everything that a model folder gives. Order matters: the layers in `config` point into `model`.
struct LoadedModel {
  std::unique_ptr<WeightSource> weights;  // null once the model is loaded: it holds its own copy
  Hash128 fingerprint;
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<EngineConfig> config;
  Device* device = &cpu_device();  // that the model runs on
  std::unique_ptr<Model> model;
  std::unique_ptr<Tokenizer> tokenizer;  // null where the folder has none
  std::optional<ChatTemplates> chat_template;
  std::string chat_template_error;  // why a template that is there cannot be used
  GenerationConfig generation;
  std::vector<int32_t> eos_token_ids;
  std::string config_json;
  std::string path;
};

// Checks options and makes the configuration that layers are registered in. Throws Error(kInvalidArgument) listing
// every problem.
std::unique_ptr<EngineConfig> make_engine_config(const EngineOptions& options);

// Cache layout shared: the tokens of an attention page and the padding of states that make the pages of these layers
// equal. Throws Error(kInvalidConfig) with the numbers where they cannot be.
void unify_cache_pages(const EngineConfig& layers, const EngineOptions& options, CacheConfig& cache);

LoadedModel load_model(const EngineOptions& options);
// The same from a config text and tensors in memory (synthetic models).
LoadedModel load_model(const EngineOptions& options, std::string config_json, std::unique_ptr<WeightSource> weights);
}  // namespace coluber
