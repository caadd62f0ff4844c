// SPDX-License-Identifier: Apache-2.0
//
// The files that torch.save writes (.bin, .pth, .pt): a zip archive that stores a pickled dictionary of tensors and the
// bytes of their storages. A reader over the mapped file: views into the mapping, nothing is executed (unpickler.h), no
// copies but of tensors that are stored in another order than row by row, when they are asked for. Every number is
// checked against the file first; a file that lies throws Error(kInvalidData) naming what does not fit. Files from
// before PyTorch 1.6, which are no zip archives, are refused with the way to convert them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/mapped_file.h"
#include "formats/tensor_file.h"

namespace coluber {

struct TorchTensor {
  std::string name;
  std::string dtype_name;      // as PyTorch spells it
  std::optional<DType> dtype;  // none: a type that this reader does not know
  std::vector<int64_t> sizes, strides;
  int64_t begin = 0, end = 0;                  // of its elements, bytes from the start of the file
  int64_t storage_begin = 0, storage_end = 0;  // of its storage, which other tensors may share
};

// Checks everything but the tensors' values. `source` names the file in messages.
std::vector<TorchTensor> parse_torch_archive(std::span<const std::byte> file, std::string_view source);

class TorchArchive final : public TensorFile {
 public:
  explicit TorchArchive(const std::string& path);

  const std::string& path() const noexcept override { return file_.path(); }
  std::vector<std::string> names() const override;
  bool contains(std::string_view name) const noexcept override { return index_.contains(name); }
  TensorView get(std::string_view name) const override;
  TensorView peek(std::string_view name) const override;
  void release(const TensorView& view) const noexcept override;

 private:
  const TorchTensor& find(std::string_view name) const;
  TensorView view_of(const TorchTensor& tensor) const;  // where it lies, with its own strides

  MappedFile file_;
  std::vector<TorchTensor> tensors_;
  std::unordered_map<std::string_view, size_t> index_;
  TensorCopies copies_;
};

}  // namespace coluber
