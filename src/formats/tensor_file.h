// SPDX-License-Identifier: Apache-2.0
//
// One file of named tensors, whatever its format: what a checkpoint (weight_source.h) is made of. Files are mapped;
// views point into the mapping and stay valid as long as the file object. Thread-safe once opened.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "coluber/tensor_view.h"

namespace coluber {

class TensorFile {
 public:
  virtual ~TensorFile() = default;
  virtual const std::string& path() const noexcept = 0;
  virtual std::vector<std::string> names() const = 0;
  virtual bool contains(std::string_view name) const noexcept = 0;
  // A row-major view, aligned to its element size. Throws Error(kNotFound), or Error(kUnsupported) for a type or rank
  // that is not supported.
  virtual TensorView get(std::string_view name) const = 0;
  // The same for who wants to know the type and the shape: its data may be misaligned, and of a tensor that is stored
  // in another order it is just as many bytes of the same storage.
  virtual TensorView peek(std::string_view name) const = 0;
  // The tensor's pages may be dropped from memory; they are read from the file again when touched.
  virtual void release(const TensorView& view) const noexcept = 0;
};

// Row-major, aligned copies of tensors that cannot be used where they lie. Each is made once; thread-safe.
class TensorCopies {
 public:
  // `view` itself where it is row-major and aligned.
  TensorView row_major(const std::string& name, const TensorView& view) const;

 private:
  mutable std::mutex mutex_;
  mutable std::unordered_map<std::string, std::unique_ptr<std::byte[]>> copies_;
};

}  // namespace coluber
