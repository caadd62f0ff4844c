// SPDX-License-Identifier: Apache-2.0
//
// From a scheme's codes and scales (formats/quantized_tensor.h) to rows of a block type, as products take them. The
// block is the longest of 16 to 128 elements that divides a row and no group's border cuts; the few matrices that no
// such block fits are written as float32. Where groups are not successive elements (act-order), the elements of every
// row are put in the order of their groups, the same for all rows, and the order goes along (TensorView::column_order):
// codes stay as small as they were, and products gather their input once instead of looking up a group an element.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/thread_pool.h"
#include "coluber/dtype.h"
#include "formats/quantized_tensor.h"

namespace coluber {

struct RowLayout {
  DType dtype = DType::kFloat32;
  int64_t block = 0;           // elements of a block; 0: float32
  std::vector<int32_t> order;  // [K]: which column each element is of; empty: their own order
};

// Sizes and `group_of` of the tensor are valid.
RowLayout row_layout(const QuantizedTensor& tensor);
// Writes all rows. `out`: as many bytes as the layout's type takes for the shape.
void write_rows(const QuantizedTensor& tensor, const RowLayout& layout, ThreadPool& pool, std::byte* out);

}  // namespace coluber
