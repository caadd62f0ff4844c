// SPDX-License-Identifier: Apache-2.0
#include "engine/output_text.h"

#include <algorithm>

namespace coluber {

namespace {

// Length of the longest end of `text` that is a proper beginning of `word`.
size_t overlap(std::string_view text, std::string_view word) {
  for (size_t n = std::min(text.size(), word.size() - 1); n > 0; --n)
    if (text.substr(text.size() - n) == word.substr(0, n)) return n;
  return 0;
}

}  // namespace

OutputText::OutputText(std::vector<std::string> stop, bool include_stop_str)
    : stop_(std::move(stop)), include_stop_str_(include_stop_str) {
  std::erase_if(stop_, [](const std::string& word) { return word.empty(); });
}

std::string OutputText::push(std::string_view piece) {
  if (stopped_) return {};
  held_ += piece;
  size_t first = std::string::npos;
  size_t length = 0;
  for (const std::string& word : stop_) {
    size_t at = held_.find(word);
    if (at < first) {
      first = at;
      length = word.size();
    }
  }
  if (first != std::string::npos) {
    stopped_ = true;
    std::string shown = held_.substr(0, include_stop_str_ ? first + length : first);
    held_.clear();
    return shown;
  }
  size_t keep = 0;
  for (const std::string& word : stop_) keep = std::max(keep, overlap(held_, word));
  std::string shown = held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return shown;
}

std::string OutputText::finish() {
  std::string rest;
  if (!stopped_) rest.swap(held_);
  return rest;
}

}  // namespace coluber
