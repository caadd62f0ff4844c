// SPDX-License-Identifier: Apache-2.0
//
// Values to the block types of GGUF (base/block_type.h): the opposite of block_types.h, for writing files. Not for a
// token loop. Q8_0, Q4_0, Q4_1, Q5_0 and Q5_1 round as PyPI's `gguf` does, bit for bit. The K types search scales and
// minima for the least squared error, so that their bytes are our own and their error is at most 1.05 times that of
// llama.cpp's search (in practice less). Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

#include "coluber/dtype.h"

namespace coluber {

class ThreadPool;

// Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K and Q6_K.
bool can_quantize(DType type) noexcept;

// `count` finite values, whole blocks, into `blocks`. Throws Error(kUnsupported) for a type that cannot be written. A
// value beyond what a block's float16 scale reaches makes that scale infinite: whoever cares reads the blocks back.
void quantize_blocks(const float* values, int64_t count, DType type, std::byte* blocks, ThreadPool& pool);

}  // namespace coluber
