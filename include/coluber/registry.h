// SPDX-License-Identifier: Apache-2.0
//
// Architectures enter themselves here, by Hugging Face's `model_type`: one file, one registration line, nothing else
// changes.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "coluber/model.h"

namespace coluber {

class Device;

struct ModelLoadContext {
  const std::string& config_json;  // text of config.json
  std::string config_path;         // for messages
  const WeightSource& weights;
  EngineConfig& config;  // layers are registered here
  ThreadPool& thread_pool;
  std::function<void(int64_t done_bytes, int64_t total_bytes)> progress;  // may be empty
  bool describe_only = false;  // weights are counted and checked, not packed; the model will not run
  Device* device = nullptr;    // where the model will run and its weights go; null: the host
};

struct ModelFamily {
  std::string model_type;                  // "mamba2"
  std::vector<std::string> architectures;  // "Mamba2ForCausalLM"
  std::function<std::unique_ptr<Model>(ModelLoadContext&)> load;
  // For checkpoints that name neither: whether this config's text (empty where there is no config.json) and these
  // tensors are the family's. May be empty.
  std::function<bool(const std::string& config_json, const WeightSource& weights)> recognizes = {};
  // Its layers keep weights where the model runs and compute by operations that CUDA devices have.
  bool runs_on_cuda = false;
};

class ModelRegistry {
 public:
  static ModelRegistry& instance();
  void add(ModelFamily family);  // throws Error(kInvalidArgument) where the name is taken
  const ModelFamily* find(std::string_view model_type) const noexcept;
  const ModelFamily* find_architecture(std::string_view architecture) const noexcept;
  // The first family that recognises a checkpoint, by name; null where none does.
  const ModelFamily* find_recognized(const std::string& config_json, const WeightSource& weights) const;
  std::vector<std::string> names() const;  // sorted

 private:
  std::vector<ModelFamily> families_;
};

// At namespace scope of a model's file: `static const RegisterModel kRegister({...});`
struct RegisterModel {
  explicit RegisterModel(ModelFamily family) { ModelRegistry::instance().add(std::move(family)); }
};

}  // namespace coluber
