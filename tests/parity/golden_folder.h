// SPDX-License-Identifier: Apache-2.0
//
// Golden checkpoints: a folder with weights, golden.safetensors (prompts and expected outputs), golden.json and mostly
// a config.json. Found by enumeration in tests/data and, where it lies beside the repository, in ../shared/golden.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "formats/safetensors.h"

namespace coluber::golden {

struct Folder {
  std::string path;
  std::string name;
  std::string device = "cpu";       // that it is tried on
  std::string family;               // that the engine finds; empty: none that is supported
  double tolerance = 0.0;           // of logits, absolute: max(1e-4, 3 * float32 noise) * std of the logits
  double relative_tolerance = 0.0;  // the same relative to a tensor's standard deviation
  std::vector<int64_t> prompt_lengths;
  int64_t states_prompt = 17;
  // Where a query of sparse attention has to choose its keys, scores tie (the sums of a few rectified products are
  // often 0), and which of them the reference takes hangs on how many keys come later. Rows from here on have no one
  // value.
  int64_t decided_positions = std::numeric_limits<int64_t>::max();
};

// How a failing test names the folder.
inline void PrintTo(const Folder& folder, std::ostream* os) {
  *os << folder.path;
}  // NOLINT(readability-identifier-naming)

// Every folder with golden.json, by name; a trimmed copy in tests/data has a name of its own beside the whole folder.
std::vector<Folder> find_folders();

// "x" for "x_text", transformers' name of the text part of a container; empty for other families.
std::string container_of(const std::string& family);

class Tensors {
 public:
  explicit Tensors(const std::string& folder);
  bool contains(const std::string& name) const;
  bool contains_prefix(const std::string& prefix) const;
  std::vector<float> floats(const std::string& name) const;
  std::vector<int32_t> ids(const std::string& name) const;
  std::vector<int64_t> shape(const std::string& name) const;

 private:
  struct Stacked;
  std::optional<Stacked> find_stacked(const std::string& name) const;
  std::vector<std::string> find_parts(const std::string& name) const;

  std::unique_ptr<SafetensorsFile> file_;
};

double max_abs_difference(const float* a, const float* b, int64_t count, int64_t* worst = nullptr);
double standard_deviation(const std::vector<float>& values);

}  // namespace coluber::golden
