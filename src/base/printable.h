// SPDX-License-Identifier: Apache-2.0
//
// Text of a file, made fit for a terminal and for a message that ends at a zero byte. For what people read; what
// programs read (JSON, names that are looked up) stays as it is.
#pragma once

#include <string>
#include <string_view>

namespace coluber {

// Control characters as \x1b, those of two bytes in UTF-8 too; line ends and tabs stay.
std::string printable(std::string_view text);

}  // namespace coluber
