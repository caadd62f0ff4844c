// SPDX-License-Identifier: Apache-2.0
//
// The points of the lattices that the codes of GGUF's IQ types name, as bytes: what a decoder multiplies by a scale.
// Made from the constants of the formats (iq_grids.inl) at first use; any thread.
#pragma once

#include <cstdint>

namespace coluber {

struct LatticePoints {
  // Magnitudes, whose signs come with the codes.
  alignas(64) int8_t iq2_xxs[256][8];
  int8_t iq2_xs[512][8];
  int8_t iq2_s[1024][8];
  int8_t iq3_xxs[256][4];
  int8_t iq3_s[512][4];
  // Signed, eight times the coordinate: a delta of an eighth that comes with the code is then one.
  int8_t iq1[2048][8];
};
const LatticePoints& lattice_points() noexcept;

}  // namespace coluber
