// SPDX-License-Identifier: Apache-2.0
//
// What a model is, without packing its weights: for `inspect`.
#pragma once

#include <memory>

#include "base/thread_pool.h"
#include "coluber/engine.h"

namespace coluber {

struct ModelDescription {
  std::string config_json;  // empty where the weights come without one
  std::string path;         // of the config, or of what stands for it: for messages
  std::unique_ptr<WeightSource> weights;
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<EngineConfig> config;  // with every caching layer registered
  std::unique_ptr<Model> model;          // may be asked for `info` and its layers for their specs, never for `forward`
};

// Accepts tensor-parallel sizes, speculative tokens and cache modes that cannot run yet: they change the states' sizes.
ModelDescription describe_model(const EngineOptions& options);

}  // namespace coluber
