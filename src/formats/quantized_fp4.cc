// SPDX-License-Identifier: Apache-2.0
//
// Four-bit floats (E2M1) with scales of float8: NVFP4 of compressed-tensors and ModelOpt, MXFP4 of compressed-tensors.
//
//   X.weight_packed (ModelOpt: X.weight) [N, K / 2] uint8    the lower nibble first
//   X.weight_scale                       [N, K / 16] float8_e4m3fn, or [N, K / 32] of powers of two (uint8)
//   X.weight_global_scale [1]            of the scales, which are divided by it; or
//   X.weight_scale_2 []                  which are multiplied by it
#include "base/dtype.h"
#include "base/error.h"
#include "formats/quantized_tensor.h"

namespace coluber {
namespace {

class Fp4 final : public QuantizedTensor {
 public:
  StoredPart codes, scales;
  float divisor = 1, factor = 1;

  void read_codes(int64_t first, int64_t count, uint8_t* out) const override {
    const std::byte* bytes = codes.data() + first * (shape[1] / 2);
    for (int64_t i = 0; i < count * (shape[1] / 2); ++i) {
      out[2 * i] = static_cast<uint8_t>(bytes[i]) & 0xf;
      out[2 * i + 1] = static_cast<uint8_t>(bytes[i]) >> 4;
    }
  }

  void read_scales(int64_t first, int64_t count, float* out, uint8_t*) const override {
    const DType dtype = scales.dtype() == DType::kUInt8 ? DType::kFloat8E8M0 : scales.dtype();
    convert_to_float(scales.data() + first * num_groups, dtype, count * num_groups, out);
    for (int64_t i = 0; i < count * num_groups; ++i) out[i] = out[i] / divisor * factor;
  }
};

// The name of the weight and, where this is one, of what it is stored in.
std::string weight_of(const QuantizedContext& context, const StoredPart& main) {
  constexpr std::string_view kPacked = "_packed";
  if (main.dtype() != DType::kUInt8) return {};
  if (main.name().ends_with(".weight_packed")) return main.name().substr(0, main.name().size() - kPacked.size());
  const bool is_modelopt = main.name().ends_with(".weight") && context.stored.contains(main.name() + "_scale_2");
  return is_modelopt ? main.name() : std::string();
}

// The one float32 of a part, which may be missing.
std::optional<float> number_in(const StoredPart& part) {
  if (!part) return 1.0f;
  if (part.dtype() != DType::kFloat32 || part.shape().count() != 1) return std::nullopt;
  return part.floats()[0];
}

}  // namespace

std::unique_ptr<QuantizedTensor> open_fp4(const QuantizedContext& context, const StoredPart& main) {
  const std::string weight = weight_of(context, main);
  if (weight.empty()) return nullptr;
  auto t = std::make_unique<Fp4>();
  t->codes = main;
  t->scales = context.part(weight + "_scale");
  const StoredPart divisor = context.part(weight + "_global_scale"), factor = context.part(weight + "_scale_2");
  const bool known =
      t->scales.is(DType::kFloat8E4M3, 2) || t->scales.is(DType::kUInt8, 2) || t->scales.is(DType::kFloat8E8M0, 2);
  const std::optional<float> by = number_in(divisor), times = number_in(factor);
  const bool fits = known && main.shape().rank() == 2 && main.shape().count() > 0 &&
                    t->scales.shape()[0] == main.shape()[0] && t->scales.shape()[1] > 0 &&
                    2 * main.shape()[1] % t->scales.shape()[1] == 0;
  if (!fits || !by || !times || *by == 0)
    return context.problem(
        fmt::format("{} with {}: expected uint8 [N, K / 2], and scales [N, groups] of float8_e4m3fn "
                    "or powers of two with one float32 above zero beside them at most",
                    main.describe(), t->scales.describe()));
  if (t->scales.dtype() == DType::kFloat8E4M3 && !divisor && !factor)
    return context.problem(fmt::format("{} with {}: expected '{}_global_scale' or '{}_scale_2' beside them",
                                       main.describe(), t->scales.describe(), weight, weight));
  t->name = weight;
  t->shape = Shape{main.shape()[0], 2 * main.shape()[1]};
  t->code = ScaledCode::kFloat4E2M1;
  t->num_groups = t->scales.shape()[1];
  t->group = t->shape[1] / t->num_groups;
  t->divisor = *by;
  t->factor = *times;
  t->parts = {t->codes, t->scales};
  if (divisor) t->parts.push_back(divisor);
  if (factor) t->parts.push_back(factor);
  return t;
}

}  // namespace coluber
