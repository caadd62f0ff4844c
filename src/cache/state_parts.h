// SPDX-License-Identifier: Apache-2.0
//
// A rank's share of a state: sizes and bytes, by the split that the layer declares (StateSplit, mamba_base.h). Taking
// every rank's share apart and putting them together again gives the same bytes. Pure functions over states in the
// contract's order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "coluber/mamba_base.h"

namespace coluber {

struct TensorParallelRank {
  int64_t size = 1;
  int64_t rank = 0;
  bool operator==(const TensorParallelRank&) const = default;
};

// A run along the split axis: where it lies in the whole and in the rank's share.
struct SharedRun {
  int64_t whole_begin = 0;
  int64_t local_begin = 0;
  int64_t size = 0;
  bool is_first_holder = true;  // no lower rank holds the same
};

// Throws Error(kInvalidConfig), naming `what`, where the parts cannot be shared out to so many ranks or do not make up
// the axis.
std::vector<SharedRun> shared_runs(const StateSplit& split, const Shape& whole, TensorParallelRank rank,
                                   std::string_view what);
Shape local_shape(const StateSplit& split, const Shape& whole, TensorParallelRank rank, std::string_view what);

// `whole` and `local` hold elements of `element_bytes`, row-major in their shapes.
void take_share(const StateSplit& split, const Shape& whole_shape, TensorParallelRank rank, int64_t element_bytes,
                std::span<const std::byte> whole, std::span<std::byte> local, std::string_view what);
// Throws Error(kInvalidData) where a run that a lower rank put there before differs: shares of different sequences.
void put_share(const StateSplit& split, const Shape& whole_shape, TensorParallelRank rank, int64_t element_bytes,
               std::span<const std::byte> local, std::span<std::byte> whole, std::string_view what);

}  // namespace coluber
