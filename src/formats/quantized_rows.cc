// SPDX-License-Identifier: Apache-2.0
#include "formats/quantized_rows.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/dtype.h"

namespace coluber {
namespace {

// Rows that are read at a time: the schemes that store columns have as many neighbours in a cache line.
constexpr int64_t kRows = 64;

// Codes and scales of a few rows.
struct Strip {
  std::vector<uint8_t> codes, zeros;
  std::vector<float> scales;

  explicit Strip(const QuantizedTensor& tensor)
      : codes(static_cast<size_t>(kRows * tensor.cols())),
        zeros(static_cast<size_t>(kRows * tensor.num_groups)),
        scales(static_cast<size_t>(kRows * tensor.num_groups)) {}
};

// One row of a strip.
class Row {
 public:
  Row(const QuantizedTensor& tensor, const RowLayout& layout, const Strip& strip, int64_t row)
      : tensor_(tensor),
        layout_(layout),
        codes_(strip.codes.data() + row * tensor.cols()),
        zeros_(strip.zeros.data() + row * tensor.num_groups),
        scales_(strip.scales.data() + row * tensor.num_groups) {}

  void write_blocks(std::byte* out) const {
    const ScaledCode code = tensor_.code;
    for (int64_t first = 0; first < tensor_.cols(); first += layout_.block) {
      const int64_t group = group_at(column(first));
      std::memcpy(out, scales_ + group, sizeof(float));
      if (scaled_code_has_zero(code)) out[sizeof(float)] = static_cast<std::byte>(zeros_[group]);
      out += scaled_codes_offset(code);
      const bool is_byte = scaled_code_bits(code) == 8;
      if (layout_.order.empty()) {
        put_codes(codes_ + first, is_byte, out);
      } else {
        gather_codes(layout_.order.data() + first, is_byte, out);
      }
      out += is_byte ? layout_.block : layout_.block / 2;
    }
  }

  void write_floats(float* out) const {
    const float* values = scaled_code_values(tensor_.code);
    const bool has_zero = scaled_code_has_zero(tensor_.code);
    for (int64_t k = 0; k < tensor_.cols(); ++k) {
      const int64_t group = group_at(k);
      out[k] = scales_[group] * (values[codes_[k]] - (has_zero ? static_cast<float>(zeros_[group]) : 0.0f));
    }
  }

 private:
  void put_codes(const uint8_t* codes, bool is_byte, std::byte* out) const {
    if (is_byte) {
      std::memcpy(out, codes, static_cast<size_t>(layout_.block));
      return;
    }
    // Eight codes to four bytes.
    for (int64_t i = 0; i < layout_.block; i += 8, out += 4) {
      uint64_t eight;
      std::memcpy(&eight, codes + i, sizeof eight);
      eight = (eight | eight >> 4) & 0x00FF00FF00FF00FF;
      eight = (eight | eight >> 8) & 0x0000FFFF0000FFFF;
      const auto four = static_cast<uint32_t>(eight | eight >> 16);
      std::memcpy(out, &four, sizeof four);
    }
  }
  void gather_codes(const int32_t* columns, bool is_byte, std::byte* out) const {
    const uint8_t* codes = codes_;
    if (is_byte) {
      for (int64_t i = 0; i < layout_.block; ++i) out[i] = static_cast<std::byte>(codes[columns[i]]);
      return;
    }
    for (int64_t i = 0; i < layout_.block / 2; ++i)
      out[i] = static_cast<std::byte>(codes[columns[2 * i]] | codes[columns[2 * i + 1]] << 4);
  }
  int64_t column(int64_t i) const { return layout_.order.empty() ? i : layout_.order[static_cast<size_t>(i)]; }
  int64_t group_at(int64_t k) const {
    return tensor_.group_of.empty() ? k / tensor_.group : tensor_.group_of[static_cast<size_t>(k)];
  }

  const QuantizedTensor& tensor_;
  const RowLayout& layout_;
  const uint8_t *codes_, *zeros_;
  const float* scales_;
};

// The largest block that divides all of the lengths; 0 where none does.
int64_t block_for(int64_t lengths_gcd) {
  for (int64_t block = kLargestScaledGroup; block >= kSmallestScaledGroup; block /= 2)
    if (lengths_gcd % block == 0) return block;
  return 0;
}

}  // namespace

RowLayout row_layout(const QuantizedTensor& tensor) {
  RowLayout layout;
  const int64_t cols = tensor.cols();
  int64_t divisor = cols;
  if (tensor.group_of.empty()) {
    if (tensor.group < cols) divisor = std::gcd(divisor, tensor.group);
  } else {
    std::vector<int64_t> sizes(static_cast<size_t>(tensor.num_groups));
    for (const int32_t group : tensor.group_of) ++sizes[static_cast<size_t>(group)];
    for (const int64_t size : sizes) divisor = std::gcd(divisor, size);
  }
  layout.block = block_for(divisor);
  if (layout.block == 0) return layout;
  layout.dtype = scaled_dtype({tensor.code, layout.block});
  if (tensor.group_of.empty()) return layout;
  layout.order.resize(static_cast<size_t>(cols));
  std::iota(layout.order.begin(), layout.order.end(), 0);
  auto group_of = [&](int32_t column) { return tensor.group_of[static_cast<size_t>(column)]; };
  std::stable_sort(layout.order.begin(), layout.order.end(),
                   [&](int32_t a, int32_t b) { return group_of(a) < group_of(b); });
  return layout;
}

void write_rows(const QuantizedTensor& tensor, const RowLayout& layout, ThreadPool& pool, std::byte* out) {
  const int64_t rows = tensor.rows(), row_bytes = dtype_bytes(layout.dtype, tensor.cols());
  std::vector<Strip> strips(static_cast<size_t>(pool.size()), Strip(tensor));
  for (const StoredPart& part : tensor.parts) part.data();  // what must be copied to be read is copied here
  pool.parallel_for((rows + kRows - 1) / kRows, 1, [&](int64_t begin, int64_t end, int thread) {
    Strip& strip = strips[static_cast<size_t>(thread)];
    for (int64_t s = begin; s < end; ++s) {
      const int64_t first = s * kRows, count = std::min(kRows, rows - first);
      tensor.read_codes(first, count, strip.codes.data());
      tensor.read_scales(first, count, strip.scales.data(), strip.zeros.data());
      for (int64_t r = 0; r < count; ++r) {
        const Row row(tensor, layout, strip, r);
        std::byte* to = out + (first + r) * row_bytes;
        if (layout.block == 0) {
          row.write_floats(reinterpret_cast<float*>(to));
        } else {
          row.write_blocks(to);
        }
      }
    }
  });
}

}  // namespace coluber
