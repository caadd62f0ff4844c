// SPDX-License-Identifier: Apache-2.0
//
// GPTQ, as AutoGPTQ and GPTQModel write it. Of a weight [N, K] with G groups a row:
//
//   X.qweight [ceil(K bits / 32), N] int32    each column a stream of K codes
//   X.qzeros  [G, ceil(N bits / 32)] int32    each row a stream of N zero points; one less than they are in format 1
//   X.scales  [G, N]
//   X.g_idx   [K] int32                       the group of each k; missing: k / group size
//
//   W[n, k] = scales[g, n] * (q[n, k] - zero[g, n])
#include <algorithm>
#include <cstring>

#include "base/dtype.h"
#include "base/error.h"
#include "formats/quantized_tensor.h"

namespace coluber {
namespace {

class Gptq final : public QuantizedTensor {
 public:
  StoredPart codes, zero_points, scales;
  int bits = 4;
  bool zeros_less_one = true;

  void read_codes(int64_t first, int64_t count, uint8_t* out) const override {
    const int64_t n = shape[0], k = shape[1];
    const std::byte* words = codes.data() + first * kWord;
    const int64_t each = 32 % bits == 0 ? 32 / bits : 0;  // codes of a word; 0: codes run over words
    const int64_t whole = each == 0 ? 0 : k / each * each;
    // Rows whose length is a power of two meet in one set of the first-level cache: no more at once than it has ways.
    constexpr int64_t kAtOnce = 8;
    for (int64_t begin = 0; begin < count; begin += kAtOnce) {
      const int64_t end = std::min(count, begin + kAtOnce);
      for (int64_t i = 0; i < whole; i += each) {
        const std::byte* row = words + i / each * n * kWord;
        for (int64_t r = begin; r < end; ++r) unpack_word(row + r * kWord, bits, out + r * k + i);
      }
    }
    for (int64_t i = whole; i < k; ++i)
      for (int64_t r = 0; r < count; ++r)
        out[r * k + i] = static_cast<uint8_t>(packed_value(words + r * kWord, i, bits, n));
  }

  void read_scales(int64_t first, int64_t count, float* out, uint8_t* zeros) const override {
    const int64_t n = shape[0], words = packed_words(n, bits);
    const std::byte *scale = scales.data(), *zero = zero_points.data();
    std::vector<float> of_group(static_cast<size_t>(count));
    for (int64_t g = 0; g < num_groups; ++g) {
      convert_to_float(scale + dtype_bytes(scales.dtype(), g * n + first), scales.dtype(), count, of_group.data());
      for (int64_t r = 0; r < count; ++r) {
        out[r * num_groups + g] = of_group[static_cast<size_t>(r)];
        // A stored 15 of 4 bits is the zero point 0: one less than 0 that has gone round.
        const uint32_t stored = packed_value(zero + g * words * kWord, first + r, bits, 1);
        const uint32_t value = zeros_less_one ? (stored + 1) & ((1U << bits) - 1) : stored;
        zeros[r * num_groups + g] = static_cast<uint8_t>(value);
      }
    }
  }

 private:
  static constexpr int64_t kWord = sizeof(uint32_t);
};

// Bits that the sizes agree with, the stated ones first; 0 where there are none.
int64_t bits_of(const QuantizedContext& context, const Gptq& t, const StoredPart& order) {
  std::vector<int64_t> candidates = context.config.bits;
  candidates.insert(candidates.end(), {4, 8, 2, 3});
  const int64_t n = t.scales.shape()[1];
  for (const int64_t bits : candidates) {
    const int64_t k = order ? order.shape()[0] : t.codes.shape()[0] * 32 / bits;
    if (t.codes.shape()[0] == packed_words(k, bits) && t.zero_points.shape()[1] == packed_words(n, bits)) return bits;
  }
  return 0;
}

// False, with a problem noted, where an index names no group.
bool read_order(const QuantizedContext& context, const StoredPart& order, Gptq& t) {
  t.group_of.resize(static_cast<size_t>(t.cols()));
  std::memcpy(t.group_of.data(), order.data(), t.group_of.size() * sizeof(int32_t));
  bool is_plain = true;
  for (size_t k = 0; k < t.group_of.size(); ++k) {
    const int64_t group = t.group_of[k];
    if (group < 0 || group >= t.num_groups) {
      context.problem(fmt::format("{}: element {} is {}; expected a group from 0 to {}, as {} has", order.describe(), k,
                                  group, t.num_groups - 1, t.scales.describe()));
      return false;
    }
    is_plain = is_plain && group == static_cast<int64_t>(k) / t.group;
  }
  if (is_plain) t.group_of.clear();
  return true;
}

}  // namespace

std::unique_ptr<QuantizedTensor> open_gptq(const QuantizedContext& context, const StoredPart& main) {
  constexpr std::string_view kMain = ".qweight";
  if (context.config.method != QuantizationMethod::kGptq || !main.name().ends_with(kMain)) return nullptr;
  const std::string module = main.name().substr(0, main.name().size() - kMain.size());
  auto t = std::make_unique<Gptq>();
  t->codes = main;
  t->zero_points = context.part(module + ".qzeros");
  t->scales = context.part(module + ".scales");
  const StoredPart order = context.part(module + ".g_idx");
  const bool fine = main.is(DType::kInt32, 2) && t->zero_points.is(DType::kInt32, 2) && t->scales &&
                    is_floating(t->scales.dtype()) && t->scales.shape().rank() == 2 &&
                    (!order || order.is(DType::kInt32, 1));
  if (!fine || main.shape().count() == 0 || t->scales.shape().count() == 0)
    return context.problem(
        fmt::format("{} with {} and {}: expected int32 [words, N], int32 [groups, words] and "
                    "floating [groups, N]{}",
                    main.describe(), t->zero_points.describe(), t->scales.describe(),
                    order ? ", and int32 [K] for " + order.describe() : ""));
  const int64_t bits = bits_of(context, *t, order), groups = t->scales.shape()[0], n = t->scales.shape()[1];
  if (bits == 0 || main.shape()[1] != n || t->zero_points.shape()[0] != groups)
    return context.problem(fmt::format("{} with {}, {} and {}: no number of bits (2, 3, 4 or 8) fits these sizes",
                                       main.describe(), t->zero_points.describe(), t->scales.describe(),
                                       order.describe()));
  if (!order && groups > 1 && context.config.act_order)
    return context.problem(fmt::format("{}: expected '{}.g_idx' beside it, as desc_act says", main.describe(), module));
  const int64_t k = order ? order.shape()[0] : main.shape()[0] * 32 / bits;
  t->group = context.group_size(k, groups, t->scales);
  if (t->group == 0) return nullptr;
  t->name = module + ".weight";
  t->shape = Shape{n, k};
  t->bits = static_cast<int>(bits);
  t->num_groups = groups;
  t->code = bits == 8 ? ScaledCode::kUInt8 : ScaledCode::kUInt4;
  t->zeros_less_one = context.config.zeros_less_one;
  t->parts = {t->codes, t->zero_points, t->scales};
  if (order) t->parts.push_back(order);
  if (!context.states(context.config.bits, bits, "values whose number of bits is", main)) return nullptr;
  if (order && !read_order(context, order, *t)) return nullptr;
  return t;
}

}  // namespace coluber
