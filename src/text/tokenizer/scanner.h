// SPDX-License-Identifier: Apache-2.0
//
// Hand-written splitters for the split expressions that most published byte-level tokenizers share (GPT-2, and the
// family of cl100k, Llama 3 and Qwen 2). They cut valid UTF-8 exactly where the expression would; `find_scanner`
// recognises an expression by its text. Immutable, thread-safe.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace coluber {

struct Scanner {
  enum class Family { kGpt2, kCl100k };
  Family family = Family::kGpt2;
  size_t max_digits = 0;  // cl100k: numbers are cut after so many characters

  // The end of the piece that starts at `at` < text.size(); always beyond `at`. The pieces cover the text without gaps.
  size_t next(std::string_view text, size_t at) const noexcept;
};

inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

std::optional<Scanner> find_scanner(std::string_view pattern) noexcept;

}  // namespace coluber
