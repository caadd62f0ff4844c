// SPDX-License-Identifier: Apache-2.0
//
// A tensor that a file is to hold: what its header says and a function that appends its bytes, so that a model larger
// than memory can be written. What the writers of all formats take.
#pragma once

#include <functional>
#include <string>

#include "base/mapped_file.h"
#include "coluber/tensor_view.h"

namespace coluber {

struct TensorOutput {
  std::string name;
  DType dtype = DType::kFloat32;
  Shape shape;
  std::function<void(FileWriter&)> write;  // must append exactly the tensor's bytes, little-endian, row-major

  static TensorOutput from_view(std::string name, const TensorView& view);  // the memory must outlive the writing
};

// Throws Error(kInternal) where the function appends another number of bytes than the tensor has.
void append_tensor(const TensorOutput& tensor, FileWriter& out);

}  // namespace coluber
