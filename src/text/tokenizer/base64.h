// SPDX-License-Identifier: Apache-2.0
//
// Bytes that a text spells in base64, as tokenizer files do. A plain function, thread-safe.
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"

namespace coluber {

// With or without padding. Fails naming the character that is none of base64's.
Result<std::string> decode_base64(std::string_view text);

}  // namespace coluber
