// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstdlib>
#include <span>

#include "base/error.h"
#include "formats/torch_archive.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

// What the reader promises of a tensor that it accepts, checked without its help: every element lies in the storage,
// and the storage in the file.
void check_promises(const coluber::TorchTensor& tensor, std::span<const std::byte> file) {
  require(tensor.storage_begin >= 0 && tensor.storage_begin <= tensor.storage_end);
  require(tensor.storage_end <= static_cast<int64_t>(file.size()));
  require(tensor.storage_begin <= tensor.begin && tensor.begin <= tensor.end && tensor.end <= tensor.storage_end);
  require(tensor.sizes.size() == tensor.strides.size());
  const __int128 element_bytes = tensor.dtype ? coluber::dtype_size(*tensor.dtype) : 1;
  __int128 last = 0;
  bool is_empty = false;
  for (size_t i = 0; i < tensor.sizes.size(); ++i) {
    require(tensor.sizes[i] >= 0 && tensor.strides[i] >= 0);
    if (tensor.sizes[i] == 0) is_empty = true;
    last += static_cast<__int128>(tensor.sizes[i] - 1) * tensor.strides[i];
  }
  if (!is_empty) require(tensor.begin + (last + 1) * element_bytes <= tensor.storage_end);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> file = std::as_bytes(std::span(data, size));
  try {
    for (const coluber::TorchTensor& tensor : coluber::parse_torch_archive(file, "fuzz")) check_promises(tensor, file);
  } catch (const coluber::Error& error) {
    require(error.code() == coluber::ErrorCode::kInvalidData || error.code() == coluber::ErrorCode::kUnsupported);
  }
  return 0;
}
