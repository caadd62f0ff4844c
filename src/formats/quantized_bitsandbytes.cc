// SPDX-License-Identifier: Apache-2.0
//
// Four bits of bitsandbytes. Of a weight of any shape, whose elements are one run cut into blocks:
//
//   X        [elements / 2, 1] uint8          the higher nibble first
//   X.absmax [blocks]                         float32 scales; or uint8 codes of them, with
//   X.nested_absmax, X.nested_quant_map       their scales (float32, a block of blocks each) and their 256 values
//   X.quant_map [16] float32                  what a code stands for: nf4's or fp4's values
//   X.quant_state.bitsandbytes__nf4 (__fp4)   JSON in bytes: shape, blocksize, nested_blocksize, nested_offset
//
//   W = quant_map[code] * absmax    absmax = nested_quant_map[code] * nested_absmax + nested_offset
#include <algorithm>
#include <numeric>

#include "base/dtype.h"
#include "base/error.h"
#include "base/json.h"
#include "formats/hf_config.h"
#include "formats/quantized_tensor.h"

namespace coluber {
namespace {

class BitsAndBytes final : public QuantizedTensor {
 public:
  StoredPart codes;
  std::vector<float> absmax;  // of all blocks
  int64_t block = 64;

  void read_codes(int64_t first, int64_t count, uint8_t* out) const override {
    const std::byte* bytes = codes.data();
    for (int64_t i = first * cols(); i < (first + count) * cols(); ++i) {
      const auto byte = static_cast<uint8_t>(bytes[i / 2]);
      *out++ = i % 2 == 0 ? byte >> 4 : byte & 0xf;
    }
  }

  void read_scales(int64_t first, int64_t count, float* scales, uint8_t*) const override {
    for (int64_t r = first; r < first + count; ++r)
      for (int64_t g = 0; g < num_groups; ++g)
        *scales++ = absmax[static_cast<size_t>((r * cols() + g * group) / block)];
  }
};

struct State {
  std::vector<int64_t> shape;
  int64_t block = 0, nested_block = 0;
  double nested_offset = 0;
};

State read_state(const StoredPart& part) {
  const TensorView view = part.view();
  const std::string_view text(reinterpret_cast<const char*>(view.data), static_cast<size_t>(view.size_bytes()));
  const Json json = value_or_throw(parse_json(text, part.name()));
  State state;
  ConfigFields fields(json, part.name());
  FieldCheck block = between(1, 65536);
  fields.list_or_one("shape", &state.shape, positive())
      .required("blocksize", &state.block, block)
      .optional("nested_blocksize", &state.nested_block, 256, block)
      .optional("nested_offset", &state.nested_offset, 0.0, finite());
  fields.check(!state.shape.empty() && state.shape.size() <= 4, "shape: expected one to four sizes");
  fields.finish();
  return state;
}

// Scales of all blocks; nothing where the tensors do not fit.
std::optional<std::vector<float>> read_absmax(const StoredPart& absmax, const StoredPart& nested,
                                              const StoredPart& values, const State& state, int64_t blocks) {
  if (absmax.shape().count() != blocks) return std::nullopt;
  if (absmax.dtype() == DType::kFloat32) return absmax.floats();
  if (absmax.dtype() != DType::kUInt8 || !nested || !values || nested.dtype() != DType::kFloat32 ||
      values.dtype() != DType::kFloat32 || values.shape().count() != 256)
    return std::nullopt;
  if (nested.shape().count() != (blocks + state.nested_block - 1) / state.nested_block) return std::nullopt;
  const std::vector<float> scales = nested.floats(), map = values.floats();
  const std::byte* codes = absmax.data();
  std::vector<float> all(static_cast<size_t>(blocks));
  for (int64_t b = 0; b < blocks; ++b) {
    const float value = map[static_cast<uint8_t>(codes[b])] * scales[static_cast<size_t>(b / state.nested_block)];
    all[static_cast<size_t>(b)] = value + static_cast<float>(state.nested_offset);
  }
  return all;
}

bool has_values(const StoredPart& map, ScaledCode code) {
  if (!map || map.dtype() != DType::kFloat32 || map.shape().count() != 16) return false;
  const std::vector<float> values = map.floats();
  return std::equal(values.begin(), values.end(), scaled_code_values(code));
}

// The parts beside the main one.
struct Beside {
  StoredPart absmax, nested, nested_values, map, state;
  ScaledCode code = ScaledCode::kNf4;

  Beside(const QuantizedContext& context, const std::string& name)
      : absmax(context.part(name + ".absmax")),
        nested(context.part(name + ".nested_absmax")),
        nested_values(context.part(name + ".nested_quant_map")),
        map(context.part(name + ".quant_map")),
        state(context.part(name + ".quant_state.bitsandbytes__nf4")) {
    const StoredPart fp4 = context.part(name + ".quant_state.bitsandbytes__fp4");
    if (state || !fp4) return;
    state = fp4;
    code = ScaledCode::kFp4;
  }
};

void fill(BitsAndBytes& t, const Beside& beside, const State& state) {
  t.code = beside.code;
  t.block = state.block;
  t.group = std::gcd(t.cols(), state.block);
  t.num_groups = t.cols() / t.group;
  t.parts = {t.codes, beside.absmax, beside.map, beside.state};
  for (const StoredPart& part : {beside.nested, beside.nested_values})
    if (part) t.parts.push_back(part);
}

}  // namespace

std::unique_ptr<QuantizedTensor> open_bitsandbytes(const QuantizedContext& context, const StoredPart& main) {
  if (main.dtype() != DType::kUInt8 || !context.stored.contains(main.name() + ".absmax")) return nullptr;
  const Beside beside(context, main.name());
  if (!beside.state || beside.state.dtype() != DType::kUInt8 || !has_values(beside.map, beside.code))
    return context.problem(
        fmt::format("{} with {} and {}: expected the 16 values of nf4 or fp4, and quant_state.bitsandbytes__nf4 or "
                    "__fp4 as bytes",
                    main.describe(), beside.map.describe(), beside.state.describe()));
  State state;
  try {
    state = read_state(beside.state);
  } catch (const Error& error) {
    return context.problem(error.what());
  }
  auto t = std::make_unique<BitsAndBytes>();
  t->name = main.name();
  t->codes = main;
  int64_t elements = 1;
  for (const int64_t size : state.shape)
    if (__builtin_mul_overflow(elements, size, &elements)) elements = 0;
  if (elements == 0 || elements / 2 + elements % 2 != main.shape().count())
    return context.problem(fmt::format("{}: expected half a byte for each element of the shape that {} gives",
                                       main.describe(), beside.state.describe()));
  t->shape = Shape(std::span<const int64_t>(state.shape));
  std::optional<std::vector<float>> absmax =
      read_absmax(beside.absmax, beside.nested, beside.nested_values, state,
                  elements / state.block + (elements % state.block != 0 ? 1 : 0));
  if (!absmax)
    return context.problem(
        fmt::format("{} with {}, {} and {}: expected a float32 for each {} elements, or a byte and "
                    "float32 scales and 256 values of these bytes",
                    main.describe(), beside.absmax.describe(), beside.nested.describe(),
                    beside.nested_values.describe(), state.block));
  t->absmax = std::move(*absmax);
  fill(*t, beside, state);
  return t;
}

}  // namespace coluber
