// SPDX-License-Identifier: Apache-2.0
#include "cache/state_parts.h"

#include <cstring>

#include "base/error.h"

namespace coluber {
namespace {

SharedRun run_of(const StateSplit::Part& part, TensorParallelRank rank, std::string_view what) {
  if (part.size < 1 || part.units < 1 || part.size % part.units != 0)
    throw make_error(ErrorCode::kInvalidConfig, "{}: a part of {} in {} units, expected at least 1 and a divisor", what,
                     part.size, part.units);
  const int64_t unit = part.size / part.units;
  if (part.units % rank.size == 0) {
    const int64_t units = part.units / rank.size;
    return {rank.rank * units * unit, 0, units * unit, true};
  }
  if (part.may_repeat && rank.size % part.units == 0) {
    const int64_t holders = rank.size / part.units;
    return {rank.rank / holders * unit, 0, unit, rank.rank % holders == 0};
  }
  throw make_error(ErrorCode::kInvalidConfig,
                   "{}: {} heads, groups or channels cannot be shared out to {} ranks; choose a size that divides them",
                   what, part.units, rank.size);
}

// Rows before the axis, and bytes of one step along it.
struct Strides {
  int64_t outer = 1;
  int64_t step_bytes = 0;
};

Strides strides_of(const Shape& shape, int axis, int64_t element_bytes) {
  Strides strides{1, element_bytes};
  for (int i = 0; i < axis; ++i) strides.outer *= shape[i];
  for (int i = axis + 1; i < shape.rank(); ++i) strides.step_bytes *= shape[i];
  return strides;
}

// Calls run(whole offset, local offset, bytes, first holder) for every contiguous piece.
template <typename Run>
void for_pieces(const StateSplit& split, const Shape& whole, TensorParallelRank rank, int64_t element_bytes,
                std::string_view what, Run&& piece) {
  const std::vector<SharedRun> runs = shared_runs(split, whole, rank, what);
  const Strides strides = strides_of(whole, split.axis, element_bytes);
  int64_t local_size = 0;
  for (const SharedRun& run : runs) local_size += run.size;
  const int64_t whole_row = whole[split.axis] * strides.step_bytes, local_row = local_size * strides.step_bytes;
  for (int64_t row = 0; row < strides.outer; ++row)
    for (const SharedRun& run : runs)
      piece(row * whole_row + run.whole_begin * strides.step_bytes,
            row * local_row + run.local_begin * strides.step_bytes, run.size * strides.step_bytes, run.is_first_holder);
}

}  // namespace

std::vector<SharedRun> shared_runs(const StateSplit& split, const Shape& whole, TensorParallelRank rank,
                                   std::string_view what) {
  if (rank.size < 1 || rank.rank < 0 || rank.rank >= rank.size)
    throw make_error(ErrorCode::kInvalidConfig, "{}: rank {} of {}, expected 0 to the size less one", what, rank.rank,
                     rank.size);
  if (split.axis < 0 || split.axis >= whole.rank())
    throw make_error(ErrorCode::kInvalidConfig, "{}: split along axis {} of shape {}", what, split.axis,
                     whole.to_string());
  if (split.parts.empty()) return {{0, 0, whole[split.axis], rank.rank == 0}};
  std::vector<SharedRun> runs;
  int64_t whole_begin = 0, local_begin = 0;
  for (const StateSplit::Part& part : split.parts) {
    SharedRun run = run_of(part, rank, what);
    run.whole_begin += whole_begin;
    run.local_begin = local_begin;
    local_begin += run.size;
    if (__builtin_add_overflow(whole_begin, part.size, &whole_begin)) whole_begin = -1;
    if (whole_begin < 0 || whole_begin > whole[split.axis]) break;
    runs.push_back(run);
  }
  if (whole_begin != whole[split.axis])
    throw make_error(ErrorCode::kInvalidConfig, "{}: the parts of axis {} do not make up its size of {}", what,
                     split.axis, whole[split.axis]);
  return runs;
}

Shape local_shape(const StateSplit& split, const Shape& whole, TensorParallelRank rank, std::string_view what) {
  Shape local = whole;
  local[split.axis] = 0;
  for (const SharedRun& run : shared_runs(split, whole, rank, what)) local[split.axis] += run.size;
  return local;
}

void take_share(const StateSplit& split, const Shape& whole_shape, TensorParallelRank rank, int64_t element_bytes,
                std::span<const std::byte> whole, std::span<std::byte> local, std::string_view what) {
  for_pieces(split, whole_shape, rank, element_bytes, what, [&](int64_t from, int64_t to, int64_t bytes, bool) {
    std::memcpy(local.data() + to, whole.data() + from, static_cast<size_t>(bytes));
  });
}

void put_share(const StateSplit& split, const Shape& whole_shape, TensorParallelRank rank, int64_t element_bytes,
               std::span<const std::byte> local, std::span<std::byte> whole, std::string_view what) {
  for_pieces(split, whole_shape, rank, element_bytes, what, [&](int64_t to, int64_t from, int64_t bytes, bool first) {
    if (first) {
      std::memcpy(whole.data() + to, local.data() + from, static_cast<size_t>(bytes));
    } else if (std::memcmp(whole.data() + to, local.data() + from, static_cast<size_t>(bytes)) != 0) {
      throw make_error(ErrorCode::kInvalidData,
                       "{}: rank {} holds another copy than the ranks before it; the parts are of different sessions",
                       what, rank.rank);
    }
  });
}

}  // namespace coluber
