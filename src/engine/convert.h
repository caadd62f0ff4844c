// SPDX-License-Identifier: Apache-2.0
//
// A model from any format that is read into one of those that are written: a folder of safetensors with config and
// tokenizer, or a GGUF file. One tensor at a time, so that memory is bounded by the largest one; all or nothing; what
// was written is read back before it takes its name. Nothing runs. One thread (and a pool of its own).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/tensor_encoder.h"

namespace coluber {

enum class CheckpointFormat { kSafetensors, kGguf };

struct CheckpointType {
  std::string_view name;     // "bfloat16", "q4_k_m"
  std::string_view summary;  // for help
};
// "f32" and "float32" stand for each other, in upper case too. Throws Error(kInvalidArgument) listing the types.
std::string checkpoint_type(CheckpointFormat format, std::string_view name);
const std::vector<CheckpointType>& checkpoint_types(CheckpointFormat format);

struct ConvertOptions {
  std::string model;  // a folder or a file
  CheckpointFormat format = CheckpointFormat::kSafetensors;
  std::string type;    // of checkpoint_types
  std::string output;  // the folder, or the .gguf file
  bool replace = false;
  int64_t max_shard_bytes = 5'000'000'000;  // of a safetensors file; a larger tensor has one of its own
  int num_threads = 0;                      // 0: all usable cores
  // May throw to stop: nothing is left behind.
  std::function<void(std::string_view phase, int64_t done_bytes, int64_t total_bytes)> progress;
};

struct ConvertReport {
  std::string output;
  int64_t bytes = 0;  // of the tensors
  int64_t files = 0;  // with tensors
  std::vector<EncodedType> types;
  std::vector<std::string> notes;  // what did not come along, and why
};

// Throws Error: kInvalidArgument for an output that is in the way or part of the model, kUnsupported where the format
// cannot hold this family, kIo.
ConvertReport convert_model(const ConvertOptions& options);

}  // namespace coluber
