// SPDX-License-Identifier: Apache-2.0
//
// The safetensors format: 8 bytes of header length, a JSON header, then the tensors' bytes without gap or overlap. A
// reader over a mapped file (views into the mapping, no copies) and a streaming writer. Every number of a header is
// checked before it is used; a file that lies throws Error(kInvalidData) naming the file, the tensor and what does not
// fit. Reading is thread-safe once opened.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/mapped_file.h"
#include "coluber/tensor_view.h"
#include "formats/tensor_file.h"
#include "formats/tensor_output.h"

namespace coluber {

struct SafetensorsEntry {
  std::string name;
  std::string dtype_name;      // as the header spells it: "BF16"
  std::optional<DType> dtype;  // none: a type that this reader does not know
  std::vector<int64_t> shape;
  int64_t begin = 0, end = 0;  // bytes from the start of the data
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // in the order of their bytes
  std::vector<std::pair<std::string, std::string>> metadata;
  int64_t data_offset = 0;  // bytes from the start of the file
};

// Checks everything but the tensors' values. `source` names the file in messages.
SafetensorsHeader parse_safetensors(std::span<const std::byte> file, std::string_view source);

class SafetensorsFile final : public TensorFile {
 public:
  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const noexcept override { return file_.path(); }
  const std::vector<SafetensorsEntry>& entries() const noexcept { return header_.entries; }
  const std::vector<std::pair<std::string, std::string>>& metadata() const noexcept { return header_.metadata; }
  const SafetensorsEntry* find(std::string_view name) const noexcept;
  std::vector<std::string> names() const override;
  bool contains(std::string_view name) const noexcept override { return find(name) != nullptr; }
  TensorView get(
      std::string_view name) const override;  // a tensor that lies at an odd place in the file is copied once
  TensorView peek(std::string_view name) const override;
  void release(const TensorView& view) const noexcept override;
  void will_need() const noexcept { file_.will_need(); }

 private:
  MappedFile file_;
  SafetensorsHeader header_;
  std::unordered_map<std::string_view, size_t> index_;
  TensorCopies copies_;
};

using SafetensorsOutput = TensorOutput;

// Writes all or nothing (write_file_atomically, whose `check` it passes on). Throws Error(kInvalidArgument) for two
// tensors of one name, Error(kIo).
void write_safetensors(const std::string& path, const std::vector<SafetensorsOutput>& tensors,
                       const std::vector<std::pair<std::string, std::string>>& metadata = {},
                       const std::function<void(const std::string& written)>& check = {});

std::optional<DType> parse_safetensors_dtype(std::string_view name) noexcept;  // "BF16"
std::optional<std::string_view> safetensors_dtype_name(DType dtype) noexcept;  // none for int4, which the format lacks

}  // namespace coluber
