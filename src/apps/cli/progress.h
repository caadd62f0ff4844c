// SPDX-License-Identifier: Apache-2.0
//
// A progress bar on stderr for long work, drawn only where stderr is a terminal, at most ten times a second, and only
// after the work has lasted a moment. Erased when done. One at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace coluber::cli {

class ProgressBar {
 public:
  // `unit` is "B" for bytes (shown as MB) or a word such as "tokens".
  ProgressBar(std::string title, std::string unit);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // `note` stands after the amounts.
  void update(int64_t done, int64_t total, std::string_view note = {});
  void finish() noexcept;

 private:
  std::string title_;
  std::string unit_;
  std::chrono::steady_clock::time_point started_;
  std::chrono::steady_clock::time_point drawn_;
  bool enabled_ = false;
  bool visible_ = false;
};

}  // namespace coluber::cli
