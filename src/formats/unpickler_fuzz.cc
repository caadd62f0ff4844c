// SPDX-License-Identifier: Apache-2.0
//
// Input: a pickle, without the archive around it. Whatever the bytes, reading ends in tensors whose numbers are sound
// or in an Error.
#include <cstdint>
#include <cstdlib>
#include <span>

#include "base/error.h"
#include "formats/unpickler.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    for (const coluber::PickledTensor& tensor :
         coluber::read_pickled_tensors(std::as_bytes(std::span(data, size)), "fuzz")) {
      require(tensor.storage_bytes >= 0 && tensor.offset >= 0 && !tensor.dtype_name.empty());
      require(tensor.sizes.size() == tensor.strides.size() && tensor.sizes.size() <= 64);
      for (size_t i = 0; i < tensor.sizes.size(); ++i) require(tensor.sizes[i] >= 0 && tensor.strides[i] >= 0);
    }
  } catch (const coluber::Error& error) {
    require(error.code() == coluber::ErrorCode::kInvalidData || error.code() == coluber::ErrorCode::kUnsupported);
  }
  return 0;
}
