// SPDX-License-Identifier: Apache-2.0
//
// Codes of a byte each in the weight's own shape, with a scale beside them: FP8 as DeepSeek, transformers, fbgemm,
// compressed-tensors and ModelOpt write it, int8 of compressed-tensors, and int8 of bitsandbytes.
//
//   X.weight [N, K], or a stack [E, N, K] under any name
//   X.weight_scale, X.weight_scale_inv    of all, each row, each group of a row or each block; a factor, whatever it is
//                                         called
//   X.weight_zero_point                   like the scale, int8; missing: zero
//   X.SCB [N] float32                     of bitsandbytes: 127 times the factor
#include <algorithm>

#include "base/dtype.h"
#include "base/error.h"
#include "formats/quantized_tensor.h"

namespace coluber {
namespace {

class Plain final : public QuantizedTensor {
 public:
  StoredPart codes, zero_points;
  std::optional<ScaleGrid> grid;
  float factor = 1;

  void read_codes(int64_t first, int64_t count, uint8_t* out) const override {
    const std::byte* from = codes.data() + first * cols();
    // With a zero point both are raised by 128.
    const auto raise = static_cast<uint8_t>(zero_points ? 0x80 : 0);
    for (int64_t i = 0; i < count * cols(); ++i) out[i] = static_cast<uint8_t>(static_cast<uint8_t>(from[i]) ^ raise);
  }

  void read_scales(int64_t first, int64_t count, float* scales, uint8_t* zeros) const override {
    grid->read(first, count, scales);
    if (factor != 1)
      for (int64_t i = 0; i < count * num_groups; ++i) scales[i] *= factor;
    if (!zero_points) return;
    const std::byte* data = zero_points.data();
    for (int64_t r = 0; r < count; ++r)
      for (int64_t g = 0; g < num_groups; ++g)
        *zeros++ = static_cast<uint8_t>(static_cast<uint8_t>(data[grid->offset(first + r) + g]) ^ 0x80);
  }
};

StoredPart scale_of(const QuantizedContext& context, const std::string& weight, bool& is_bitsandbytes) {
  for (const std::string_view end : {"_scale_inv", "_scale"})
    if (StoredPart scale = context.part(weight + std::string(end))) return scale;
  constexpr std::string_view kWeight = ".weight";
  is_bitsandbytes = weight.ends_with(kWeight);
  return context.part(is_bitsandbytes ? weight.substr(0, weight.size() - kWeight.size()) + ".SCB" : weight + ".SCB");
}

// FP8 alone is no weight: its values lie where eight bits reach, and a scale says what they stand for.
bool is_weight(const StoredPart& part) {
  return part.shape().rank() >= 2 && part.name().find("scale") == std::string::npos;
}

ScaledCode code_of(DType dtype, bool has_zero) {
  if (dtype == DType::kFloat8E4M3) return ScaledCode::kFloat8E4M3;
  if (dtype == DType::kFloat8E5M2) return ScaledCode::kFloat8E5M2;
  return has_zero ? ScaledCode::kUInt8 : ScaledCode::kInt8;
}

}  // namespace

std::unique_ptr<QuantizedTensor> open_plain(const QuantizedContext& context, const StoredPart& main) {
  const bool is_float = main.dtype() == DType::kFloat8E4M3 || main.dtype() == DType::kFloat8E5M2;
  if (!is_float && main.dtype() != DType::kInt8) return nullptr;
  bool is_bitsandbytes = false;
  const StoredPart scale = scale_of(context, main.name(), is_bitsandbytes);
  if (!scale) {
    if (is_float && is_weight(main))
      return context.problem(fmt::format("{}: expected '{}_scale' or '{}_scale_inv' beside it", main.describe(),
                                         main.name(), main.name()));
    return nullptr;  // values of their own, or a scale or zero point of another weight
  }
  auto t = std::make_unique<Plain>();
  t->codes = main;
  t->zero_points = context.part(main.name() + "_zero_point");
  std::vector<int64_t> block = context.config.block_size;
  if (block.empty()) block = {128, 128};
  if (is_floating(scale.dtype())) t->grid = ScaleGrid::fit(scale, main.shape(), block);
  if (!t->grid)
    return context.problem(
        fmt::format("{} with {}: expected floating values for the whole, rows, groups of rows or "
                    "blocks of {} x {}",
                    main.describe(), scale.describe(), block[0], block.back()));
  if (t->zero_points && (is_float || t->zero_points.dtype() != DType::kInt8 || t->zero_points.shape() != scale.shape()))
    return context.problem(fmt::format("{} with {}: expected int8 codes, and int8 zero points like {}", main.describe(),
                                       t->zero_points.describe(), scale.describe()));
  t->name = main.name();
  t->shape = main.shape();
  t->code = code_of(main.dtype(), static_cast<bool>(t->zero_points));
  t->group = t->grid->group();
  t->num_groups = t->grid->num_groups();
  t->factor = is_bitsandbytes ? 1.0f / 127.0f : 1.0f;
  t->parts = {main, scale};
  if (t->zero_points) t->parts.push_back(t->zero_points);
  return t;
}

}  // namespace coluber
