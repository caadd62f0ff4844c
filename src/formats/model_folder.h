// SPDX-License-Identifier: Apache-2.0
//
// From what a user names as a model (a folder, or a file in one) to the files in it. Looks, reads nothing.
#pragma once

#include <string>

namespace coluber {

struct ModelFolder {
  std::string folder;                  // where config.json and the rest lie
  std::string config_path;             // "folder/config.json"; empty where the weights come without one
  std::string generation_config_path;  // may not exist
  std::string weights_path;            // the folder, or the file that was named
  // tokenizer.json or its like in the folder, the file that was named, or the GGUF file where there is none of these;
  // may not exist
  std::string tokenizer_path;
};

enum class ModelNeeds {
  kConfig,     // config.json must be there, or weights that may do without
  kTokenizer,  // a folder or file that has only a tokenizer is enough
};

// `path`: a folder, a file of weights, a config.json or a file of a tokenizer. Throws Error(kNotFound) saying what was
// looked for and what is there, Error(kUnsupported) for files of formats that are not read.
ModelFolder resolve_model(const std::string& path, ModelNeeds needs = ModelNeeds::kConfig);

// Names of a folder's entries, sorted, at most `limit`, as "a, b, c and 4 more": for messages.
std::string describe_folder(const std::string& folder, int limit = 12);

}  // namespace coluber
