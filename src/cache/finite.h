// SPDX-License-Identifier: Apache-2.0
//
// Whether states hold only finite numbers, at memory speed. Pure function.
#pragma once

#include <cstddef>
#include <cstdint>

#include "coluber/dtype.h"

namespace coluber {

// `count` elements of float32, bfloat16 or float16; of any other type everything is finite.
bool all_finite(const std::byte* data, DType dtype, int64_t count);

}  // namespace coluber
