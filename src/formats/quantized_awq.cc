// SPDX-License-Identifier: Apache-2.0
//
// AWQ in its gemm form, as AutoAWQ and GPTQModel write it. Of a weight [N, K] with G groups a row:
//
//   X.qweight [K, ceil(N bits / 32)] int32    each row a stream of N codes
//   X.qzeros  [G, ceil(N bits / 32)] int32
//   X.scales  [G, N]
//
//   W[n, k] = (q[k, n] - zero[g, n]) * scales[g, n]
//
// Of 4 bits, the eight values of a word stand for columns 0 2 4 6 1 3 5 7; of 8 bits, in order.
#include <cstring>

#include "base/dtype.h"
#include "base/error.h"
#include "formats/quantized_tensor.h"
#include "kernels/simd/transpose_units.h"

namespace coluber {
namespace {

constexpr int64_t kWord = sizeof(uint32_t);
// Where in a word of eight each column stands.
constexpr int64_t kPlaces[8] = {0, 4, 1, 5, 2, 6, 3, 7};

class Awq final : public QuantizedTensor {
 public:
  StoredPart codes, zero_points, scales;
  int bits = 4;

  void read_codes(int64_t first, int64_t count, uint8_t* out) const override {
    using Square = UnitSquare<uint8_t>;
    constexpr int64_t kSide = Square::kSide;
    const int64_t k = shape[1], row_bytes = words() * kWord;
    const std::byte* data = codes.data();
    // Strips begin at whole words. Where a strip or K ends within a square, one by one.
    const int64_t rows = count / kSide * kSide, whole = k / kSide * kSide;
    std::byte square[kSide * kSide];
    for (int64_t r = 0; r < rows; r += kSide) {
      for (int64_t i = 0; i < whole; i += kSide) {
        for (int64_t j = 0; j < kSide; ++j)
          in_order(data + (i + j) * row_bytes + (first + r) * bits / 8, square + j * kSide);
        Square::transpose(square, kSide, reinterpret_cast<std::byte*>(out + r * k + i), k);
      }
    }
    for (int64_t r = 0; r < count; ++r)
      for (int64_t i = r < rows ? whole : 0; i < k; ++i) out[r * k + i] = value(data + i * row_bytes, first + r);
  }

  void read_scales(int64_t first, int64_t count, float* out, uint8_t* zeros) const override {
    const int64_t n = shape[0], row_bytes = words() * kWord;
    const std::byte *scale = scales.data(), *zero = zero_points.data();
    std::vector<float> of_group(static_cast<size_t>(count));
    for (int64_t g = 0; g < num_groups; ++g) {
      convert_to_float(scale + dtype_bytes(scales.dtype(), g * n + first), scales.dtype(), count, of_group.data());
      for (int64_t r = 0; r < count; ++r) {
        out[r * num_groups + g] = of_group[static_cast<size_t>(r)];
        zeros[r * num_groups + g] = value(zero + g * row_bytes, first + r);
      }
    }
  }

 private:
  int64_t words() const { return codes.shape()[1]; }
  // The values of sixteen columns, a byte each.
  void in_order(const std::byte* from, std::byte* out) const {
    if (bits == 8) {
      std::memcpy(out, from, 16);
      return;
    }
    for (int i = 0; i < 2; ++i) {
      uint32_t word = 0;
      std::memcpy(&word, from + i * kWord, sizeof word);
      const uint64_t values = spread(word & 0xFFFF) | spread(word >> 16) << 8;
      std::memcpy(out + i * 8, &values, sizeof values);
    }
  }
  // Four values to every second byte.
  static uint64_t spread(uint64_t values) {
    values = (values | values << 24) & 0x000000FF000000FF;
    return (values | values << 12) & 0x000F000F000F000F;
  }
  uint8_t value(const std::byte* row, int64_t n) const {
    const int64_t place = bits == 4 ? n / 8 * 8 + kPlaces[n % 8] : n;
    return static_cast<uint8_t>(packed_value(row, place, bits, 1));
  }
};

}  // namespace

std::unique_ptr<QuantizedTensor> open_awq(const QuantizedContext& context, const StoredPart& main) {
  constexpr std::string_view kMain = ".qweight";
  if (context.config.method != QuantizationMethod::kAwq || !main.name().ends_with(kMain)) return nullptr;
  const std::string module = main.name().substr(0, main.name().size() - kMain.size());
  auto t = std::make_unique<Awq>();
  t->codes = main;
  t->zero_points = context.part(module + ".qzeros");
  t->scales = context.part(module + ".scales");
  const bool fine = main.is(DType::kInt32, 2) && t->zero_points.is(DType::kInt32, 2) && t->scales &&
                    is_floating(t->scales.dtype()) && t->scales.shape().rank() == 2;
  if (!fine || main.shape().count() == 0 || t->scales.shape().count() == 0)
    return context.problem(
        fmt::format("{} with {} and {}: expected int32 [K, words], int32 [groups, words] and "
                    "floating [groups, N]",
                    main.describe(), t->zero_points.describe(), t->scales.describe()));
  const int64_t k = main.shape()[0], words = main.shape()[1], groups = t->scales.shape()[0], n = t->scales.shape()[1];
  const int64_t bits = n % 8 == 0 && words == packed_words(n, 4) ? 4 : words == packed_words(n, 8) ? 8 : 0;
  if (bits == 0 || t->zero_points.shape() != Shape{groups, words})
    return context.problem(
        fmt::format("{} with {} and {}: expected [K, N bits / 32], [groups, N bits / 32] and [groups, N] of 4 or 8 "
                    "bits",
                    main.describe(), t->zero_points.describe(), t->scales.describe()));
  t->name = module + ".weight";
  t->shape = Shape{n, k};
  t->bits = static_cast<int>(bits);
  t->num_groups = groups;
  t->group = context.group_size(k, groups, t->scales);
  if (t->group == 0) return nullptr;
  t->code = bits == 8 ? ScaledCode::kUInt8 : ScaledCode::kUInt4;
  t->parts = {t->codes, t->zero_points, t->scales};
  if (!context.states(context.config.bits, bits, "values whose number of bits is", main)) return nullptr;
  return t;
}

}  // namespace coluber
