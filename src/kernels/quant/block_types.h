// SPDX-License-Identifier: Apache-2.0
//
// The block types of GGUF (base/block_type.h), all that the package `gguf` dequantises: Q4_0 to Q8_0, the K, IQ and TQ
// types, MXFP4 and NVFP4. Their values are the package's bit for bit: tests/data/quant holds blocks and values that it
// made. Nothing here quantises.
#pragma once

#include <optional>
#include <string_view>

#include "coluber/dtype.h"

namespace coluber {

// By ggml's name, "Q4_K"; registers all of them on first use. Nothing for a name that is none of them.
std::optional<DType> quantized_dtype(std::string_view ggml_name);

}  // namespace coluber
