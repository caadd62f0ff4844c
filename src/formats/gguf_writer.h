// SPDX-License-Identifier: Apache-2.0
//
// Writes GGUF files, version 3: metadata as the caller has it, a table of tensors, their bytes one tensor at a time. It
// knows no architecture (gguf_export.h does). All or nothing; one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "formats/tensor_output.h"

namespace coluber {

// Readers insist on these types: what one key holds must not vary. The span is a value of another file as it is stored
// there, its type first (GgufStoredEntry).
using GgufOutputValue =
    std::variant<uint32_t, int32_t, uint64_t, float, bool, std::string, std::vector<uint32_t>, std::vector<int32_t>,
                 std::vector<float>, std::vector<bool>, std::vector<std::string>, std::span<const std::byte>>;
using GgufMetadata = std::vector<std::pair<std::string, GgufOutputValue>>;

// The file holds the tensors in the order given. `check` as in write_file_atomically. Throws Error(kInvalidArgument)
// for a name that comes twice and what the format cannot hold: a rank above 4, a type of its own, rows that are no
// whole blocks.
void write_gguf(const std::string& path, const GgufMetadata& metadata, const std::vector<TensorOutput>& tensors,
                const std::function<void(const std::string& written)>& check = {});

}  // namespace coluber
