// SPDX-License-Identifier: Apache-2.0
#include "kernels/quant/lattices.h"

#include <cstddef>

namespace coluber {
namespace {

#include "kernels/quant/iq_grids.inl"

constexpr int8_t kIq2Values[4] = {0x08, 0x19, 0x2b, 0};
constexpr int8_t kIq3XxsValues[8] = {0x04, 0x0c, 0x14, 0x1c, 0x24, 0x2c, 0x34, 0x3e};
constexpr int8_t kIq3SValues[8] = {0x01, 0x03, 0x05, 0x07, 0x09, 0x0b, 0x0d, 0x0f};
constexpr int8_t kIq1Values[4] = {-8, 0, 8, 0};

template <size_t kPoints, size_t kCoordinates, size_t kValues>
void unpack(const uint16_t (&grid)[kPoints], const int8_t (&values)[kValues], int8_t (&out)[kPoints][kCoordinates]) {
  constexpr size_t kBits = 16 / kCoordinates;
  for (size_t p = 0; p < kPoints; ++p)
    for (size_t i = 0; i < kCoordinates; ++i) out[p][i] = values[(grid[p] >> (kBits * i)) & (kValues - 1)];
}

}  // namespace

const LatticePoints& lattice_points() noexcept {
  static const LatticePoints kPoints = [] {
    LatticePoints points;
    unpack(kIq2XxsGrid, kIq2Values, points.iq2_xxs);
    unpack(kIq2XsGrid, kIq2Values, points.iq2_xs);
    unpack(kIq2SGrid, kIq2Values, points.iq2_s);
    unpack(kIq3XxsGrid, kIq3XxsValues, points.iq3_xxs);
    unpack(kIq3SGrid, kIq3SValues, points.iq3_s);
    unpack(kIq1SGrid, kIq1Values, points.iq1);
    return points;
  }();
  return kPoints;
}

}  // namespace coluber
