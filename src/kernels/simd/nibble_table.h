// SPDX-License-Identifier: Apache-2.0
//
// What the vectors of vec_codes.inl look up by nibbles: sixteen floats for a tier that holds them in one register, and
// the bytes of the floats, a table each, for one that does not. Plain data; who fills it owns it.
#pragma once

#include <cstdint>

namespace coluber {

struct NibbleTable {
  float values[16];
  uint8_t bytes[4][16];  // [byte of the float, from the lowest][nibble]
};

}  // namespace coluber
