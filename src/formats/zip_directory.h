// SPDX-License-Identifier: Apache-2.0
//
// Where the files of a zip archive lie, for archives that store without compressing (as PyTorch writes them), zip64
// included. Reads the directory alone; every number is checked against the file. Not an unpacker: a compressed or
// encrypted entry is refused. A plain function, thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace coluber {

struct ZipEntry {
  std::string name;
  int64_t begin = 0, end = 0;  // bytes from the start of the file
};

bool looks_like_zip(std::span<const std::byte> file) noexcept;

// In the order of the directory. Throws Error(kInvalidData) for a damaged archive, Error(kUnsupported) for what is
// stored otherwise; `source` names the file in messages.
std::vector<ZipEntry> read_zip_directory(std::span<const std::byte> file, std::string_view source);

}  // namespace coluber
