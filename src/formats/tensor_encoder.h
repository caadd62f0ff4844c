// SPDX-License-Identifier: Apache-2.0
//
// Tensors of one type on their way into a file of another: values are read a run of rows at a time, brought into the
// type asked for, read back to see what was lost, and appended; a checksum of what was appended stays for the check of
// the finished file. Holds no tensor. It knows no format and no names. One thread, which uses the pool.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "coluber/model.h"
#include "formats/tensor_output.h"

namespace coluber {

// Values of rows [first, first + count) of a tensor seen as [rows, last dimension], as float32; what it reads from is
// let go with it. Rows may be read on several threads at once.
using RowReader = std::function<void(int64_t first, int64_t count, float* out)>;

struct TensorValues {
  Shape shape;
  std::function<RowReader()> open;
};
// Of a row-major view, columns in their order whatever the view's.
void convert_rows_to_float(const TensorView& view, int64_t first, int64_t count, float* out);
// As `weights` has them; it must outlive the reading.
TensorValues values_of(const WeightSource& weights, const std::string& name);

// Of bytes that stay where they are until `release`.
TensorValues values_at(const std::byte* data, DType dtype, const Shape& shape, std::function<void()> release);

// What was written of one type.
struct EncodedType {
  DType dtype = DType::kFloat32;
  int64_t tensors = 0, elements = 0, bytes = 0;
  double squared_error = 0, squares = 0;   // of the values before
  double relative_error() const noexcept;  // root of the mean squares
};

class TensorEncoder {
 public:
  // `progress` is told of bytes written; what it throws ends the writing.
  TensorEncoder(ThreadPool& pool, std::function<void(int64_t bytes)> progress)
      : pool_(pool), progress_(std::move(progress)) {}

  // `dtype` is float32, float16, bfloat16 or a type that quantize.h writes. Writing throws Error(kInvalidData) where a
  // value is not finite and the type cannot say so, or is beyond what the type can hold. The encoder must outlive it.
  TensorOutput encode(std::string name, DType dtype, TensorValues values);
  // Bytes as they are, of any type.
  TensorOutput copy(std::string name, const WeightSource& weights, const std::string& source);
  // What `open` gives keeps the bytes where they are.
  TensorOutput copy(std::string name, DType dtype, const Shape& shape,
                    std::function<std::shared_ptr<const std::byte>()> open);

  // Throws Error(kIo) where the bytes of a tensor that was written are others.
  void check(const std::string& name, std::span<const std::byte> bytes, const std::string& path) const;
  std::vector<EncodedType> types() const;  // the largest share first

 private:
  struct Work;
  void encode_rows(const std::string& name, DType dtype, const TensorValues& values, FileWriter& out);
  void append(Work& work, std::span<const std::byte> bytes, FileWriter& out);
  void compare(Work& work, int64_t count);
  void note(const std::string& name, DType dtype, int64_t elements, const Work& work);

  ThreadPool& pool_;
  std::function<void(int64_t)> progress_;
  std::map<std::string, uint64_t, std::less<>> checksums_;
  std::map<DType, EncodedType> types_;
};

}  // namespace coluber
