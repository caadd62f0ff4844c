// SPDX-License-Identifier: Apache-2.0
//
// A checkpoint as llama.cpp's converter would write it: the metadata that its config gives, and its tensors under
// GGUF's names with the rules of gguf_rules.h taken backwards. Reads no values: they are read when the file is written.
// What the format cannot say is refused, never left out in silence. The plan points into the weights. One thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "coluber/model.h"
#include "formats/gguf_writer.h"
#include "formats/tensor_encoder.h"

namespace coluber {

struct GgufExportTensor {
  std::string name;
  TensorValues values;
};

struct GgufExport {
  GgufMetadata metadata;                  // general.* and the architecture's; nothing of tokenizers or types
  std::vector<GgufExportTensor> tensors;  // those of no layer first, then layer by layer
  int64_t num_layers = 0, num_experts = 0;
  int64_t added_parameters = 0;    // of a matrix that the checkpoint has once and the file twice
  std::vector<std::string> notes;  // tensors that did not come along
};

struct GgufExportSource {
  const std::string& config_json;
  const std::string& path;          // for messages
  const std::string& architecture;  // of the family that runs it
  const std::string& folder;        // its name becomes the model's
  const WeightSource& weights;
};

// Throws Error(kUnsupported) for a family that has no GGUF architecture, with the list of those that have one, and for
// what an architecture cannot say.
GgufExport plan_gguf_export(const GgufExportSource& source);

}  // namespace coluber
