// SPDX-License-Identifier: Apache-2.0
//
// The parts of convert_model (convert.h): what both formats share and the work of each. Internal to the engine.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "engine/convert.h"
#include "engine/description.h"
#include "formats/gguf_writer.h"
#include "formats/model_folder.h"

namespace coluber {

// Throws Error(kInvalidArgument) where `output` is there and may not be replaced, or where it is the model, holds it or
// is a file of it.
void check_conversion_output(const ConvertOptions& options, const ModelFolder& source);
// Throws Error(kIo) where so many bytes do not fit beside `output`.
void check_free_space(const std::string& output, int64_t bytes);

// Counts bytes for ConvertOptions::progress.
class ConversionProgress {
 public:
  explicit ConversionProgress(const ConvertOptions& options) : options_(options) {}
  void begin(std::string_view phase, int64_t total_bytes);
  void add(int64_t bytes);

 private:
  const ConvertOptions& options_;
  std::string_view phase_ = "reading";
  int64_t done_ = 0, total_ = 0;
};

struct Conversion {
  const ConvertOptions& options;
  const ModelFolder& source;
  ModelDescription& model;
  ThreadPool& pool;
  ConversionProgress& progress;
  ConvertReport& report;
};

void convert_to_safetensors(Conversion& conversion);
void convert_to_gguf(Conversion& conversion);
// A GGUF file into one of other types: metadata and names as they are, whatever the architecture.
void requantize_gguf(const ConvertOptions& options, const std::string& path, ThreadPool& pool,
                     ConversionProgress& progress, ConvertReport& report);

// The files beside the weights that make a checkpoint complete, for a folder of safetensors: tokenizer, chat template,
// generation_config.json. A file is copied where `text` is empty.
struct CompanionFile {
  std::string name;
  std::string copied_from;
  std::string text;
};
std::vector<CompanionFile> companion_files(const Conversion& conversion);

// Tokenizer and chat template as the metadata of a GGUF file has them. A model without one that can be said so gets
// none, and the report a note.
GgufMetadata text_metadata(const Conversion& conversion);

}  // namespace coluber
