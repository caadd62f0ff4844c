// SPDX-License-Identifier: Apache-2.0
//
// Takes named tensors for layers and keeps the books: which were used, which are missing or of another shape (all
// reported in one message by `finish`), parameters by dtype, progress. A missing tensor reads as zeros until `finish`
// throws; a configuration that asks for far more than there is ends earlier, before it costs memory or time. Lives as
// long as the load context that it was made from, however it is copied; one thread.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "coluber/registry.h"
#include "tensor/placed_array.h"

namespace coluber {

class WeightLoader {
 public:
  explicit WeightLoader(ModelLoadContext& context);

  WeightLoader scoped(std::string_view child) const;  // names below are relative to prefix + child + "."
  std::string full_name(std::string_view name) const;

  bool has(std::string_view name) const;
  // As stored; nothing where it is missing. Reads no value.
  std::optional<Shape> shape_of(std::string_view name) const;
  // The tensor as stored, row-major. A size of 0 in `expected` matches any. Floating types only. What does
  // not fit is noted for `finish`, and zeros of the expected shape come back (float32; any-size as 1). Throws what
  // `finish` would once 1000 problems are noted, or where the zeros would be larger than any model's weight.
  TensorView take(std::string_view name, const Shape& expected);
  // A float32 copy that stays on the host: a layer that takes one runs on the CPU alone, and `finish` says so where the
  // model is to run on another device. Throws what `finish` would once zeros for tensors that do not fit fill 16 MiB.
  std::vector<float> take_float(std::string_view name, const Shape& expected);
  // The same for a layer that computes with it what it then places, or places it as it is.
  std::vector<float> read_float(std::string_view name, const Shape& expected);
  FloatArray take_array(std::string_view name, const Shape& expected) { return place(read_float(name, expected)); }
  // Where the layer's kernels read it.
  FloatArray place(std::vector<float> values) const { return {std::move(values), place_of_arrays()}; }
  PlacedArray<double> place(std::vector<double> values) const { return {std::move(values), place_of_arrays()}; }
  // Copies of whole numbers (int64 or int32): tables beside the weights. Zeros where the loader only describes.
  std::vector<int64_t> take_integers(std::string_view name, const Shape& expected);
  // The first of the names that is there (both spellings of published checkpoints); the first one in messages.
  std::string_view first_of(std::initializer_list<std::string_view> names) const;
  // Tensors below this prefix are known and not needed (buffers, other towers); `why` goes to the notes of `inspect`.
  void ignore(std::string_view prefix, std::string_view why);

  // A tensor from `take` was copied: the system may drop its pages.
  void release(const TensorView& tensor) const noexcept;

  ThreadPool& thread_pool() const;
  Device& device() const;  // where weights go
  // What is asked of the layer runs on the CPU alone: as take_float.
  void keep_on_host(std::string_view why);
  EngineConfig& config() const;
  bool describe_only() const;  // true: check and count, do not pack (ModelLoadContext)
  // Counts a weight for ModelInfo: `multiplied` parameters a token meets, `streamed` bytes one decode step reads.
  void count_matmul(int64_t parameters, int64_t bytes);

  // Throws Error(kInvalidData) listing every missing or misshapen tensor; fills the counts and notes of `info` (tensors
  // that nothing used are a note and a warning in the log).
  void finish(ModelInfo& info);

 private:
  struct Books;
  Device& place_of_arrays() const;

  std::shared_ptr<Books> books_;
  std::string prefix_;
};

}  // namespace coluber
