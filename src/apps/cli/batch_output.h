// SPDX-License-Identifier: Apache-2.0
//
// The results of `coluber batch`: one line of JSON each, appended whole, so that an end at any moment leaves at most
// one torn line. Opening a file that already has results reads which lines are done, and drops a torn last line; a file
// that holds anything else is refused, not mended. The file is locked while it is written. One thread.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_set>

#include "base/json.h"

namespace coluber::cli {

class BatchOutput {
 public:
  // "-" is standard output, where nothing can have been done before. Throws Error(kIo, kInvalidData), and
  // Error(kResourceExhausted) where another process writes the file.
  explicit BatchOutput(const std::string& path);
  ~BatchOutput();
  BatchOutput(const BatchOutput&) = delete;
  BatchOutput& operator=(const BatchOutput&) = delete;

  bool is_done(const std::string& id_key) const { return done_ids_.contains(id_key); }
  // Lines of the input that had no id which a result could bear.
  bool is_line_done(int64_t number) const { return done_lines_.contains(number); }
  int64_t num_done_before() const noexcept { return static_cast<int64_t>(done_ids_.size() + done_lines_.size()); }
  bool dropped_torn_line() const noexcept { return dropped_torn_line_; }

  void write(const Json& result);

 private:
  void read_done(const std::string& text);
  void take_done(const Json& result, int64_t line_number);

  std::string path_;
  int fd_ = -1;  // -1: standard output
  std::unordered_set<std::string> done_ids_;
  std::unordered_set<int64_t> done_lines_;
  bool dropped_torn_line_ = false;
};

}  // namespace coluber::cli
