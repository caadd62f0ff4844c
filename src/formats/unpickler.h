// SPDX-License-Identifier: Apache-2.0
//
// The tensors that a pickle of torch.save names. It knows dictionaries, lists, numbers, texts, tensors and storages and
// nothing else: a name of a function or class that is not on its short list is refused, nothing is ever imported or
// called. It reads no storage and checks no tensor against one (torch_archive.h does). A plain function, thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coluber/dtype.h"

namespace coluber {

struct PickledTensor {
  std::string name;        // its key in the dictionary
  std::string storage;     // key of the storage: the archive has it as data/<key>
  std::string dtype_name;  // "bfloat16", or "complex64": known to PyTorch alone
  std::optional<DType> dtype;
  int64_t storage_bytes = 0;
  int64_t offset = 0;  // elements from the start of the storage
  std::vector<int64_t> sizes, strides;
};

// In the dictionary's order; values that are no tensors (numbers, optimizer settings) are left out. Where there is no
// tensor at the top, a dictionary of tensors that is the only one there ("state_dict") is taken. Throws
// Error(kInvalidData) for a damaged pickle, Error(kUnsupported) for a name that is not known or a dictionary without
// tensors; `source` names the file in messages.
std::vector<PickledTensor> read_pickled_tensors(std::span<const std::byte> pickle, std::string_view source);

}  // namespace coluber
