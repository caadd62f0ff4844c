// SPDX-License-Identifier: Apache-2.0
//
// What a checkpoint says about how its weights were quantised: the section quantization_config of config.json, or the
// file beside it that older packages wrote. Only what reading needs, and what stored tensors are checked against; how a
// tensor is stored is seen from the tensors (formats/quantized_weights.h). What concerns activations, calibration and
// the cache is not looked at: products here take float32 activations.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"

namespace coluber {

enum class QuantizationMethod { kGptq, kAwq, kFp8, kCompressedTensors, kModelOpt, kBitsAndBytes };

struct QuantizationConfig {
  QuantizationMethod method = QuantizationMethod::kGptq;
  std::string path;                  // file, for messages
  std::vector<int64_t> bits;         // of weights, as stated for any module; empty: nothing is stated
  std::vector<int64_t> group_sizes;  // elements that share a scale; -1: whole rows; empty: nothing is stated
  std::vector<int64_t> block_size;   // rows and columns that share a scale, where that is stated
  bool zeros_less_one = false;       // GPTQ's first format stores zero points less one
  bool act_order = false;            // groups of all modules are in an order that is stored with them
};

// Of config.json's content (an object) and the folder that it lies in, empty where there is none. Nothing where neither
// says that weights are quantised. Throws Error(kUnsupported) naming a scheme that is not read and those that are,
// Error(kInvalidConfig) listing every field that is wrong.
std::optional<QuantizationConfig> read_quantization_config(const Json& config, const std::string& config_path,
                                                           const std::string& folder);

}  // namespace coluber
