// SPDX-License-Identifier: Apache-2.0
//
// compressed-tensors' pack-quantized. Of a weight [N, K] with G groups a row (one, where a row or all share a scale):
//
//   X.weight_packed     [N, ceil(K bits / 32)] int32    each row a stream of K codes, raised by half their range
//   X.weight_shape      [2] int64                       N, K
//   X.weight_scale      [N, G] or [1]
//   X.weight_zero_point [ceil(N bits / 32), G] int32    each column a stream, raised likewise; or int8 like the scale;
//                                                       missing: zero
//   X.weight_g_idx      [K] int32                       the group of each k; missing or all -1: k / group size
//
//   W[n, k] = (q[n, k] - zero[n, g]) * scale[n, g]
#include <algorithm>
#include <cstring>

#include "base/dtype.h"
#include "base/error.h"
#include "formats/quantized_tensor.h"

namespace coluber {
namespace {

constexpr int64_t kWord = sizeof(uint32_t);

class Packed final : public QuantizedTensor {
 public:
  StoredPart codes, zero_points;
  std::optional<ScaleGrid> grid;
  int bits = 4;

  void read_codes(int64_t first, int64_t count, uint8_t* out) const override {
    const int64_t k = shape[1], row_bytes = packed_words(k, bits) * kWord;
    // Codes of fewer bits than the type's are moved so that their middle is the type's.
    const int raise = zero_points ? 0 : (1 << (scaled_code_bits(code) - 1)) - (1 << (bits - 1));
    const int flip = code == ScaledCode::kInt8 ? 0x80 : 0;  // bytes are two's complement, nibbles raised by 8
    const int64_t each = 32 % bits == 0 ? 32 / bits : 0;    // codes of a word; 0: codes run over words
    const int64_t whole = each == 0 ? 0 : k / each * each;
    const std::byte* row = codes.data() + first * row_bytes;
    for (int64_t r = 0; r < count; ++r, row += row_bytes, out += k) {
      for (int64_t i = 0; i < whole; i += each) unpack_word(row + i / each * kWord, bits, out + i);
      for (int64_t i = whole; i < k; ++i) out[i] = static_cast<uint8_t>(packed_value(row, i, bits, 1));
      for (int64_t i = 0; i < k; ++i) out[i] = static_cast<uint8_t>((out[i] + raise) ^ flip);
    }
  }

  void read_scales(int64_t first, int64_t count, float* scales, uint8_t* zeros) const override {
    grid->read(first, count, scales);
    if (!zero_points) return;
    const std::byte* data = zero_points.data();
    for (int64_t r = 0; r < count; ++r) {
      for (int64_t g = 0; g < num_groups; ++g, ++zeros) {
        if (zero_points.dtype() == DType::kInt32) {
          *zeros = static_cast<uint8_t>(packed_value(data + g * kWord, first + r, bits, num_groups));
        } else {
          const auto stored = static_cast<int8_t>(data[grid->offset(first + r) + g]);
          *zeros = static_cast<uint8_t>(stored + (1 << (bits - 1)));
        }
      }
    }
  }
};

std::optional<Shape> stored_shape(const StoredPart& part) {
  if (!part || part.shape().rank() != 1 || part.shape()[0] != 2) return std::nullopt;
  if (part.dtype() != DType::kInt64 && part.dtype() != DType::kInt32) return std::nullopt;
  int64_t sizes[2] = {};
  for (int i = 0; i < 2; ++i) {
    int32_t narrow = 0;
    if (part.dtype() == DType::kInt64) {
      std::memcpy(&sizes[i], part.data() + i * 8, 8);
    } else {
      std::memcpy(&narrow, part.data() + i * 4, 4);
      sizes[i] = narrow;
    }
    if (sizes[i] < 1 || sizes[i] > (int64_t{1} << 31)) return std::nullopt;
  }
  return Shape{sizes[0], sizes[1]};
}

bool zeros_fit(const Packed& t) {
  if (!t.zero_points) return true;
  if (t.zero_points.dtype() == DType::kInt8) return t.zero_points.shape() == t.grid->scale().shape();
  return t.zero_points.is(DType::kInt32, 2) &&
         t.zero_points.shape() == Shape{packed_words(t.shape[0], t.bits), t.num_groups} &&
         (t.num_groups == 1 || t.grid->scale().shape()[0] == t.shape[0]);
}

// False, with a problem noted, where an index names no group.
bool read_order(const QuantizedContext& context, const StoredPart& order, Packed& t) {
  std::vector<int32_t> groups(static_cast<size_t>(t.cols()));
  std::memcpy(groups.data(), order.data(), groups.size() * sizeof(int32_t));
  if (std::all_of(groups.begin(), groups.end(), [](int32_t g) { return g == -1; })) return true;  // not filled in
  bool is_plain = true;
  for (size_t k = 0; k < groups.size(); ++k) {
    if (groups[k] < 0 || groups[k] >= t.num_groups) {
      context.problem(fmt::format("{}: element {} is {}; expected a group from 0 to {}, as {} has", order.describe(), k,
                                  groups[k], t.num_groups - 1, t.grid->scale().describe()));
      return false;
    }
    is_plain = is_plain && groups[k] == static_cast<int64_t>(k) / t.group;
  }
  if (!is_plain) t.group_of = std::move(groups);
  return true;
}

// Bits of values that fill rows of so many words; the stated ones first.
int64_t bits_of(const QuantizationConfig& config, int64_t k, int64_t words) {
  std::vector<int64_t> candidates = config.bits;
  candidates.insert(candidates.end(), {4, 8, 2, 3, 5, 6, 7});
  for (const int64_t bits : candidates)
    if (bits >= 2 && bits <= 8 && words == packed_words(k, bits)) return bits;
  return 0;
}

}  // namespace

std::unique_ptr<QuantizedTensor> open_packed(const QuantizedContext& context, const StoredPart& main) {
  constexpr std::string_view kMain = "_packed";
  if (!main.name().ends_with(".weight_packed") || main.dtype() != DType::kInt32) return nullptr;
  const std::string weight = main.name().substr(0, main.name().size() - kMain.size());
  const StoredPart sizes = context.part(weight + "_shape"), scale = context.part(weight + "_scale"),
                   order = context.part(weight + "_g_idx");
  auto t = std::make_unique<Packed>();
  t->codes = main;
  t->zero_points = context.part(weight + "_zero_point");
  const std::optional<Shape> shape = stored_shape(sizes);
  const int64_t bits = shape && main.shape().rank() == 2 && main.shape()[0] == (*shape)[0]
                           ? bits_of(context.config, (*shape)[1], main.shape()[1])
                           : 0;
  if (bits == 0)
    return context.problem(
        fmt::format("{} with {}: expected [N, K bits / 32] of 2 to 8 bits, and two whole numbers N, K", main.describe(),
                    sizes.describe()));
  t->name = weight;
  t->shape = *shape;
  t->bits = static_cast<int>(bits);
  if (scale && is_floating(scale.dtype())) t->grid = ScaleGrid::fit(scale, *shape, {});
  if (!t->grid)
    return context.problem(fmt::format("{} with {}: expected floating [N, groups], [N, 1] or [1] for the shape {}",
                                       main.describe(), scale.describe(), shape->to_string()));
  t->group = t->grid->group();
  t->num_groups = t->grid->num_groups();
  if (!zeros_fit(*t))
    return context.problem(fmt::format("{} with {}: expected int32 [N bits / 32, groups], or int8 like {}",
                                       main.describe(), t->zero_points.describe(), scale.describe()));
  if (order && (!order.is(DType::kInt32, 1) || order.shape()[0] != t->cols()))
    return context.problem(fmt::format("{}: expected int32 [{}]", order.describe(), t->cols()));
  if (t->zero_points) {
    t->code = bits > 4 ? ScaledCode::kUInt8 : ScaledCode::kUInt4;
  } else {
    t->code = bits > 4 ? ScaledCode::kInt8 : ScaledCode::kInt4;
  }
  if (!order && t->num_groups > 1 && context.config.act_order)
    return context.problem(fmt::format("{}: expected '{}_g_idx' beside it, as actorder says", main.describe(), weight));
  t->parts = {main, sizes, scale};
  if (t->zero_points) t->parts.push_back(t->zero_points);
  if (order) t->parts.push_back(order);
  if (!context.states(context.config.bits, bits, "values whose number of bits is", main)) return nullptr;
  if (order && !read_order(context, order, *t)) return nullptr;
  return t;
}

}  // namespace coluber
