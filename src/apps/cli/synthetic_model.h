// SPDX-License-Identifier: Apache-2.0
//
// Models of published shapes with random weights, made in memory for measuring speed, which does not depend on values.
// Values are scaled so that activations stay of order one. Layers share the tensors that they read: what a layer packs
// from them is its own memory, so a run streams as many bytes as the real model.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "coluber/model.h"

namespace coluber::cli {

struct SyntheticModel {
  std::string config_json;
  std::unique_ptr<WeightSource> weights;  // bfloat16
};

std::vector<std::string> synthetic_shapes();
// Throws Error(kInvalidArgument) listing the shapes where the name is none of them.
SyntheticModel make_synthetic_model(std::string_view shape);

}  // namespace coluber::cli
