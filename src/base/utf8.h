// SPDX-License-Identifier: Apache-2.0
//
// Whether bytes are UTF-8: no byte out of place, nothing spelled longer than it is, no surrogates. No state;
// thread-safe.
#pragma once

#include <cstddef>
#include <string_view>

namespace coluber {

bool is_ascii(std::string_view text) noexcept;
bool is_valid_utf8(std::string_view text) noexcept;
// Length of the longest prefix that is valid UTF-8; a character cut off by the end is not part of it.
size_t valid_utf8_prefix(std::string_view text) noexcept;
// The length of the valid character at `text[0]`, or 0; `broken` is then the length of the part to replace, and `cut`
// tells that more bytes could have made it valid.
size_t check_utf8_character(std::string_view text, size_t& broken, bool& cut) noexcept;

}  // namespace coluber
