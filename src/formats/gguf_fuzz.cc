// SPDX-License-Identifier: Apache-2.0
// Any bytes as a GGUF file: refused with an Error, or read within their bounds.
#include <span>

#include "base/error.h"
#include "formats/gguf_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  try {
    for (const auto& tensor : coluber::parse_gguf(bytes, "input").tensors) {
      if (tensor.offset + tensor.size_bytes > static_cast<int64_t>(size)) __builtin_trap();
    }
  } catch (const coluber::Error&) {
  }
  return 0;
}
