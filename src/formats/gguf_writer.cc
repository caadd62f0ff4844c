// SPDX-License-Identifier: Apache-2.0
#include "formats/gguf_writer.h"

#include <set>
#include <string_view>
#include <type_traits>

#include "base/block_type.h"
#include "base/error.h"
#include "formats/gguf_file.h"

namespace coluber {
namespace {

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr int64_t kAlignment = 32;       // what a file without general.alignment has
constexpr int kMostDimensions = 4;
constexpr size_t kMostNameBytes = 63;  // of a tensor, in the fixed field of other readers

enum Kind : uint32_t { kUint32 = 4, kInt32 = 5, kFloat32 = 6, kBool = 7, kString = 8, kArray = 9, kUint64 = 10 };

class Header {
 public:
  template <typename T>
  void put(T value) {
    text_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void text(std::string_view value) {
    put<uint64_t>(value.size());
    text_ += value;
  }
  void value(const GgufOutputValue& value) {
    std::visit([this](const auto& held) { typed(held); }, value);
  }
  const std::string& bytes() const noexcept { return text_; }
  int64_t size() const noexcept { return static_cast<int64_t>(text_.size()); }

 private:
  template <typename T>
  static constexpr Kind kind_of() {
    if constexpr (std::is_same_v<T, uint32_t>) return kUint32;
    if constexpr (std::is_same_v<T, int32_t>) return kInt32;
    if constexpr (std::is_same_v<T, uint64_t>) return kUint64;
    if constexpr (std::is_same_v<T, float>) return kFloat32;
    if constexpr (std::is_same_v<T, bool>) return kBool;
    return kString;
  }
  void element(bool value) { put<uint8_t>(value ? 1 : 0); }
  void element(const std::string& value) { text(value); }
  template <typename T>
  void element(T value) {
    put(value);
  }
  template <typename T>
  void typed(const T& value) {
    put<uint32_t>(kind_of<T>());
    element(value);
  }
  template <typename T>
  void typed(const std::vector<T>& values) {
    put<uint32_t>(kArray);
    put<uint32_t>(kind_of<T>());
    put<uint64_t>(values.size());
    for (const T& value : values) element(value);
  }
  void typed(std::span<const std::byte> stored) {
    text_.append(reinterpret_cast<const char*>(stored.data()), stored.size());
  }

  std::string text_;
};

int64_t padding_of(int64_t bytes) { return (kAlignment - bytes % kAlignment) % kAlignment; }

void check_tensor(const TensorOutput& tensor) {
  const auto refuse = [&](const std::string& why) {
    throw make_error(ErrorCode::kInvalidArgument, "tensor '{}' cannot be in a GGUF file: {}", tensor.name, why);
  };
  if (tensor.name.empty() || tensor.name.size() > kMostNameBytes)
    refuse(fmt::format("its name has {} bytes; expected 1 to {}", tensor.name.size(), kMostNameBytes));
  const int rank = tensor.shape.rank();
  if (rank < 1 || rank > kMostDimensions)
    refuse(fmt::format("it has {} dimensions; expected 1 to {}", rank, kMostDimensions));
  if (tensor.shape.count() == 0) refuse("it has no elements");
  if (!ggml_type_of(tensor.dtype)) refuse(fmt::format("the format has no type {}", dtype_name(tensor.dtype)));
  if (const BlockType* blocks = find_block_type(tensor.dtype);
      blocks != nullptr && tensor.shape[rank - 1] % blocks->elements != 0)
    refuse(fmt::format("its rows of {} are no whole blocks of {} ({} elements)", tensor.shape[rank - 1], blocks->name,
                       blocks->elements));
}

template <typename Items, typename Name>
void check_names(const Items& items, const char* what, Name name) {
  std::set<std::string_view> names;
  for (const auto& item : items) {
    if (!names.insert(name(item)).second)
      throw make_error(ErrorCode::kInvalidArgument, "a GGUF file cannot hold the {} '{}' twice", what, name(item));
  }
}

std::string header_of(const GgufMetadata& metadata, const std::vector<TensorOutput>& tensors) {
  Header header;
  header.put(kMagic);
  header.put<uint32_t>(3);
  header.put<uint64_t>(tensors.size());
  header.put<uint64_t>(metadata.size());
  for (const auto& [key, value] : metadata) {
    header.text(key);
    header.value(value);
  }
  int64_t offset = 0;
  for (const TensorOutput& tensor : tensors) {
    header.text(tensor.name);
    const int rank = tensor.shape.rank();
    header.put(static_cast<uint32_t>(rank));
    for (int i = rank - 1; i >= 0; --i) header.put(static_cast<uint64_t>(tensor.shape[i]));
    header.put(*ggml_type_of(tensor.dtype));
    header.put(static_cast<uint64_t>(offset));
    const int64_t bytes = dtype_bytes(tensor.dtype, tensor.shape.count());
    offset += bytes + padding_of(bytes);
  }
  return header.bytes() + std::string(static_cast<size_t>(padding_of(header.size())), '\0');
}

}  // namespace

void write_gguf(const std::string& path, const GgufMetadata& metadata, const std::vector<TensorOutput>& tensors,
                const std::function<void(const std::string& written)>& check) {
  for (const TensorOutput& tensor : tensors) check_tensor(tensor);
  check_names(tensors, "tensor", [](const TensorOutput& tensor) -> std::string_view { return tensor.name; });
  check_names(metadata, "key", [](const auto& entry) -> std::string_view { return entry.first; });
  const std::string header = header_of(metadata, tensors);
  const auto write = [&](FileWriter& out) {
    out.append(std::string_view(header));
    for (const TensorOutput& tensor : tensors) {
      append_tensor(tensor, out);
      const int64_t bytes = dtype_bytes(tensor.dtype, tensor.shape.count());
      out.append(std::string_view(std::string(static_cast<size_t>(padding_of(bytes)), '\0')));
    }
  };
  write_file_atomically(path, write, check);
}

}  // namespace coluber
