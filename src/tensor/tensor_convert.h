// SPDX-License-Identifier: Apache-2.0
//
// Copies of tensors as float32. For loading weights, exporting states and tests; not for a token loop.
#pragma once

#include <vector>

#include "base/dtype.h"
#include "coluber/tensor_view.h"

namespace coluber {

// Writes the tensor row-major, columns in order; any strides, any alignment, any type. Throws Error(kInvalidArgument)
// for a strided tensor of a type narrower than a byte.
void convert_to_float(const TensorView& view, float* out);
std::vector<float> to_float_vector(const TensorView& view);

}  // namespace coluber
