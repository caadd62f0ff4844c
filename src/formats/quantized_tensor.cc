// SPDX-License-Identifier: Apache-2.0
#include "formats/quantized_tensor.h"

#include <algorithm>
#include <cstring>

#include "base/dtype.h"
#include "base/error.h"
#include "tensor/tensor_convert.h"

namespace coluber {
namespace {

// How many elements share each of `count` scales along a size; 0 where no rule gives so many.
int64_t size_of_step(int64_t size, int64_t count, int64_t block) {
  if (count == 1) return size;
  if (count == size) return 1;
  if (block > 0 && (size + block - 1) / block == count) return block;
  return count > 0 && size % count == 0 ? size / count : 0;
}

// As [..., rows, cols], where a grid over a weight of so many dimensions is written as [..., rows, 1, cols, 1].
Shape without_ones(const Shape& shape, int rank) {
  if (shape.rank() != rank + 2 || shape[rank - 1] != 1 || shape[rank + 1] != 1) return shape;
  Shape grid(std::span<const int64_t>(shape.begin(), static_cast<size_t>(rank)));
  grid[rank - 1] = shape[rank];
  return grid;
}

// Without its trailing dimensions of one.
Shape trimmed(const Shape& shape) {
  int rank = shape.rank();
  while (rank > 0 && shape[rank - 1] == 1) --rank;
  return Shape(std::span<const int64_t>(shape.begin(), static_cast<size_t>(rank)));
}

}  // namespace

StoredPart::StoredPart(const WeightSource& source, std::string name) : name_(std::move(name)) {
  if (!source.contains(name_)) return;
  source_ = &source;
  const TensorView view = source.peek(name_);
  dtype_ = view.dtype;
  shape_ = view.shape;
}

std::vector<float> StoredPart::floats() const { return to_float_vector(view()); }

std::string StoredPart::describe() const {
  return source_ == nullptr ? fmt::format("'{}' missing", name_)
                            : fmt::format("'{}' {} {}", name_, dtype_name(dtype_), shape_.to_string());
}

bool QuantizedContext::states(const std::vector<int64_t>& stated, int64_t found, std::string_view what,
                              const StoredPart& part) const {
  if (stated.empty() || std::find(stated.begin(), stated.end(), found) != stated.end()) return true;
  std::string list;
  for (const int64_t value : stated) list += (list.empty() ? "" : ", ") + std::to_string(value);
  problems.push_back(
      fmt::format("{}: holds {} {}; expected {} as {} says", part.describe(), what, found, list, config.path));
  return false;
}

int64_t QuantizedContext::group_size(int64_t k, int64_t groups, const StoredPart& scales) const {
  for (const int64_t stated : config.group_sizes) {
    const int64_t size = stated == -1 ? k : stated;
    if (groups > 0 && k / size + (k % size != 0 ? 1 : 0) == groups) return size;
  }
  if (groups < 1 || k % groups != 0) {
    problems.push_back(fmt::format("{}: {} groups do not divide rows of {}", scales.describe(), groups, k));
    return 0;
  }
  return states(config.group_sizes, k / groups, "scales of groups of a size of", scales) ? k / groups : 0;
}

uint32_t packed_value(const std::byte* words, int64_t index, int bits, int64_t stride) noexcept {
  auto word = [&](int64_t i) {
    uint32_t value = 0;
    std::memcpy(&value, words + i * stride * static_cast<int64_t>(sizeof value), sizeof value);
    return value;
  };
  const int64_t bit = index * bits;
  const int shift = static_cast<int>(bit % 32);
  uint32_t value = word(bit / 32) >> shift;
  if (shift + bits > 32) value |= word(bit / 32 + 1) << (32 - shift);
  return value & ((1U << bits) - 1);
}

std::optional<ScaleGrid> ScaleGrid::fit(const StoredPart& scale, const Shape& shape,
                                        const std::vector<int64_t>& block) {
  if (!scale || shape.rank() < 2 || shape.count() == 0) return std::nullopt;
  ScaleGrid grid;
  grid.scale_ = scale;
  const int last = shape.rank() - 1;
  const int64_t cols = shape[last];
  grid.rows_ = shape[last - 1];
  // One for all, one a matrix of a stack, one a row, or a grid over each matrix.
  const Shape full = without_ones(scale.shape(), shape.rank()), stored = trimmed(full);
  int64_t stack = 1, grid_rows = 1, grid_cols = 1;
  for (int i = 0; i < last - 1; ++i) stack *= shape[i];
  const int64_t count = stored.count();
  if (stored.rank() == 0) {
    grid.rows_ = shape.count() / cols;
  } else if (count == stack) {
    // one a matrix: nothing to add
  } else if (count == stack * grid.rows_ && stored.rank() <= last) {
    grid_rows = grid.rows_;
  } else if (full.rank() == shape.rank() && std::equal(shape.begin(), shape.begin() + last - 1, full.begin())) {
    grid_rows = full[last - 1];
    grid_cols = full[last];
  } else {
    return std::nullopt;
  }
  grid.grid_rows_ = grid_rows;
  grid.grid_cols_ = grid_cols;
  grid.rows_each_ = size_of_step(grid.rows_, grid_rows, block.size() == 2 ? block[0] : 0);
  grid.cols_each_ = size_of_step(cols, grid_cols, block.size() == 2 ? block[1] : 0);
  if (grid.rows_each_ == 0 || grid.cols_each_ == 0) return std::nullopt;
  return grid;
}

void ScaleGrid::read(int64_t first, int64_t count, float* scales) const {
  const std::byte* data = scale_.data();
  for (int64_t r = 0; r < count; ++r)
    convert_to_float(data + dtype_bytes(scale_.dtype(), offset(first + r)), scale_.dtype(), grid_cols_,
                     scales + r * grid_cols_);
}

}  // namespace coluber
