// SPDX-License-Identifier: Apache-2.0
//
// What `inspect` says about a model, as plain values computed by the functions that the engine itself runs on (specs,
// pages, alignment): gathered once, then shown as JSON (here) or drawn for a person (inspect_command.cc).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "coluber/config.h"
#include "coluber/model.h"

namespace coluber::cli {

struct LayerFacts {
  std::string name;
  std::string kind;
  std::string feed_forward;  // kind of the block's second half ("mlp", "moe"); empty where it has none
  std::string mamba_type;    // empty for layers without a recurrent state
  std::string backend;       // empty for layers that keep nothing
  std::vector<Shape> state_shapes;
  std::vector<DType> state_dtypes;
  int64_t page_size_bytes = 0;
  std::optional<int64_t> prefill_checkpoint_alignment;
  std::optional<KVCacheSpec> spec;
};

struct ModelFacts {
  ModelInfo info;
  int64_t max_model_len = 0;
  int64_t state_bytes_per_sequence = 0;  // peak of one request in this cache mode
  int64_t kv_bytes_per_token = 0;
  std::optional<int64_t> prefill_checkpoint_alignment;
  std::vector<LayerFacts> layers;

  // Memory that one sequence of so many tokens keeps.
  int64_t cache_bytes(int64_t tokens) const;
};

ModelFacts gather_facts(const ModelInfo& info, const EngineConfig& config);
Json facts_json(const ModelFacts& facts);

}  // namespace coluber::cli
