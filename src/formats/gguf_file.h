// SPDX-License-Identifier: Apache-2.0
//
// The GGUF format, versions 2 and 3, little-endian: typed metadata, a table of tensors, then their bytes. A reader over
// a mapped file, or over all files of a split one: views into the mappings, no copies. It knows no architecture and no
// Hugging Face name (gguf.h does). Every number of a header is checked before it is used; a file that lies throws
// Error(kInvalidData) naming the file, the place and what does not fit. Thread-safe once opened.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/mapped_file.h"
#include "coluber/tensor_view.h"

namespace coluber {

// An array as its elements: integers (bool among them), reals or texts. Texts point into the file.
using GgufValue = std::variant<int64_t, double, bool, std::string_view, std::vector<int64_t>, std::vector<double>,
                               std::vector<std::string_view>>;

struct GgufTensor {
  std::string name;
  uint32_t ggml_type = 0;
  std::optional<DType> dtype;  // none: a type that is not read
  Shape shape;                 // row-major, as other formats write it: the file's order turned round
  int64_t offset = 0;          // bytes from the start of the file
  int64_t size_bytes = 0;
  int file = 0;  // of a split model
};

// A key and its value as the file has it, the value's type first: for copying what is not understood.
struct GgufStoredEntry {
  std::string_view key;
  std::span<const std::byte> value;
};

struct GgufHeader {
  uint32_t version = 0;
  std::vector<GgufStoredEntry> entries;  // in the file's order
  std::map<std::string, GgufValue, std::less<>> metadata;
  std::vector<GgufTensor> tensors;  // in the file's order
};

// What the format calls a type; none where it has no such type.
std::optional<uint32_t> ggml_type_of(DType dtype) noexcept;

// Checks everything but the values of tensors. `source` names the file in messages.
GgufHeader parse_gguf(std::span<const std::byte> file, std::string_view source);

// The files of the split model whose first has this name ("x-00001-of-00003.gguf"), itself among them; itself alone
// where the name says nothing of others.
std::vector<std::string> gguf_parts(const std::string& path);

class GgufFile {
 public:
  // A file, or the first of a split model ("x-00001-of-00003.gguf"), whose others lie beside it.
  explicit GgufFile(const std::string& path);

  const std::string& path() const noexcept { return path_; }
  const std::vector<GgufTensor>& tensors() const noexcept { return header_.tensors; }
  const std::vector<GgufStoredEntry>& entries() const noexcept { return header_.entries; }
  const GgufTensor* find(std::string_view name) const noexcept;
  const std::byte* data_of(const GgufTensor& tensor) const noexcept;
  void release(std::span<const std::byte> range) const noexcept;

  // Metadata; the getters give nothing where the key is missing and throw Error(kInvalidData) where it has another
  // type.
  bool has(std::string_view key) const noexcept { return header_.metadata.contains(key); }
  bool is_list(std::string_view key) const noexcept;
  std::optional<int64_t> integer(std::string_view key) const;
  std::optional<double> real(std::string_view key) const;
  std::optional<bool> boolean(std::string_view key) const;
  std::optional<std::string_view> text(std::string_view key) const;
  const std::vector<int64_t>* integers(std::string_view key) const;  // null where missing
  const std::vector<double>* reals(std::string_view key) const;
  const std::vector<std::string_view>* texts(std::string_view key) const;

 private:
  template <typename T>
  const T* value_of(std::string_view key, std::string_view expected) const;
  void append_split(int64_t count);
  void check_place(const GgufHeader& part, const std::string& name, int64_t index, int64_t count) const;

  std::string path_;
  std::vector<std::unique_ptr<MappedFile>> files_;
  GgufHeader header_;
  std::map<std::string_view, size_t> by_name_;
};

}  // namespace coluber
