// SPDX-License-Identifier: Apache-2.0
//
// One quantised weight as a checkpoint stores it: several tensors (codes, scales, zero points, an order) that stand for
// one matrix. Each scheme is a file of its own, quantized_<scheme>.cc, which looks at shapes, says what does not fit,
// and reads codes and scales of any rows; what becomes of them is the same for all (formats/quantized_rows.h). Reads
// the stored tensors where they lie and owns nothing but names. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coluber/model.h"
#include "formats/quantization_config.h"
#include "kernels/quant/scaled_types.h"

namespace coluber {

// A stored tensor.
class StoredPart {
 public:
  StoredPart() = default;                                    // none
  StoredPart(const WeightSource& source, std::string name);  // none where there is no such tensor

  explicit operator bool() const noexcept { return source_ != nullptr; }
  const std::string& name() const noexcept { return name_; }
  DType dtype() const noexcept { return dtype_; }
  const Shape& shape() const noexcept { return shape_; }
  bool is(DType dtype, int rank) const noexcept {
    return source_ != nullptr && dtype_ == dtype && shape_.rank() == rank;
  }
  TensorView view() const { return source_->get(name_); }
  const std::byte* data() const { return view().data; }
  std::vector<float> floats() const;  // all values
  std::string describe() const;       // "'x.scales' float16 [2, 8]"

 private:
  const WeightSource* source_ = nullptr;
  std::string name_;
  DType dtype_ = DType::kFloat32;
  Shape shape_;
};

class QuantizedTensor {
 public:
  virtual ~QuantizedTensor() = default;

  std::string name;  // of the weight that layers ask for
  Shape shape;       // [N, K], or a stack of them
  ScaledCode code = ScaledCode::kInt8;
  int64_t group = 0;                  // successive elements of a row that share a scale; the last group may be shorter
  std::vector<int32_t> group_of;      // [K] where groups are not successive elements (act-order); else empty
  int64_t num_groups = 0;             // of a row
  std::vector<StoredPart> parts;      // what it is stored in
  std::vector<std::string> unneeded;  // tensors that belong to it and are not read: scales of activations

  int64_t cols() const noexcept { return shape[shape.rank() - 1]; }
  int64_t rows() const { return cols() == 0 ? 0 : shape.count() / cols(); }

  // Codes of `count` rows from `first` on, a byte each, [count, K].
  virtual void read_codes(int64_t first, int64_t count, uint8_t* codes) const = 0;
  // Scales of these rows and, where the code has them, zero points, [count, num_groups].
  virtual void read_scales(int64_t first, int64_t count, float* scales, uint8_t* zeros) const = 0;
};

// All that is wrong with the tensors of one checkpoint.
using QuantizationProblems = std::vector<std::string>;

// What a scheme looks at.
struct QuantizedContext {
  const WeightSource& stored;
  const QuantizationConfig& config;
  QuantizationProblems& problems;

  StoredPart part(std::string name) const { return {stored, std::move(name)}; }
  // Null, for the caller to give back.
  std::unique_ptr<QuantizedTensor> problem(std::string text) const {
    problems.push_back(std::move(text));
    return nullptr;
  }
  // A number that the tensors show and that the config does not state (an empty list states nothing) is a problem.
  bool states(const std::vector<int64_t>& stated, int64_t found, std::string_view what, const StoredPart& part) const;
  // Elements of a group where rows of k have so many groups: as stated, or what divides k. 0 with a problem noted where
  // neither is.
  int64_t group_size(int64_t k, int64_t groups, const StoredPart& scales) const;
};

// Each looks at a stored tensor that may be a scheme's main one, and gives what it stands for. Null where it is none of
// the scheme's, or one with a problem, which is noted.
using OpenQuantized = std::unique_ptr<QuantizedTensor>(const QuantizedContext& context, const StoredPart& main);
OpenQuantized open_gptq;          // X.qweight [K / 8, N]
OpenQuantized open_awq;           // X.qweight [K, N / 8]
OpenQuantized open_packed;        // X.weight_packed int32
OpenQuantized open_fp4;           // X.weight_packed or X.weight, uint8, with scales of float8
OpenQuantized open_bitsandbytes;  // X.weight with X.weight.absmax
OpenQuantized open_plain;         // X.weight of float8 or int8 with a scale beside it

// Value `index` of a little-endian stream of values of `bits` bits in 32-bit words that lie `stride` words apart.
uint32_t packed_value(const std::byte* words, int64_t index, int bits, int64_t stride) noexcept;
// The values of one word, lowest bits first; `bits` divides 32.
inline void unpack_word(const std::byte* from, int bits, uint8_t* values) noexcept {
  uint32_t word = 0;
  std::memcpy(&word, from, sizeof word);
  if (bits == 4) {
    // All eight at once: shift by shift each leaves its neighbour.
    uint64_t spread = word;
    spread = (spread | spread << 16) & 0x0000FFFF0000FFFF;
    spread = (spread | spread << 8) & 0x00FF00FF00FF00FF;
    spread = (spread | spread << 4) & 0x0F0F0F0F0F0F0F0F;
    std::memcpy(values, &spread, sizeof spread);
    return;
  }
  for (int i = 0; i < 32 / bits; ++i) values[i] = static_cast<uint8_t>((word >> (i * bits)) & ((1U << bits) - 1));
}
// Words that `count` values take.
constexpr int64_t packed_words(int64_t count, int64_t bits) noexcept { return (count * bits + 31) / 32; }

// Scales in a grid over a weight's rows and columns: of the whole, a row, a group of a row, or a block.
class ScaleGrid {
 public:
  // Empty where `scale` fits no grid over `shape`. `block`: rows and columns, tried where the numbers alone do not say.
  static std::optional<ScaleGrid> fit(const StoredPart& scale, const Shape& shape, const std::vector<int64_t>& block);

  int64_t group() const noexcept { return cols_each_; }
  int64_t num_groups() const noexcept { return grid_cols_; }
  // Where the scales of a row begin, in elements.
  int64_t offset(int64_t row) const noexcept {
    return (row / rows_ * grid_rows_ + row % rows_ / rows_each_) * grid_cols_;
  }
  const StoredPart& scale() const noexcept { return scale_; }
  void read(int64_t first, int64_t count, float* scales) const;

 private:
  StoredPart scale_;
  int64_t rows_ = 1, rows_each_ = 1, cols_each_ = 1, grid_rows_ = 1, grid_cols_ = 1;
};

}  // namespace coluber
