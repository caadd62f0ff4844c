// SPDX-License-Identifier: Apache-2.0
#include "formats/gguf_mix.h"

#include <algorithm>
#include <charconv>
#include <map>

#include "base/block_type.h"
#include "base/error.h"
#include "kernels/quant/block_types.h"

namespace coluber {
namespace {

constexpr int64_t kManyExperts = 8;  // the number that the rules know

bool contains(std::string_view name, std::string_view part) { return name.find(part) != std::string_view::npos; }

// Matrices that are small and felt by everything behind them.
constexpr std::string_view kNeverNarrow[] = {
    "ffn_gate_inp.weight",   "ffn_gate_inp_shexp.weight", "ssm_conv1d",
    "shortconv.conv.weight", "time_mix_first.",           "time_mix_w1.",
    "time_mix_w2.",          "time_mix_decay_w1.",        "time_mix_decay_w2.",
    "time_mix_lerp_fused.",
};
// These may be float16, and are not cut into blocks.
constexpr std::string_view kNeverBlocks[] = {
    "time_mix_w0.", "time_mix_v0.", "time_mix_v1.", "time_mix_v2.", "time_mix_a0.",
    "time_mix_a1.", "time_mix_a2.", "time_mix_g1.", "time_mix_g2.",
};

bool has_any(std::string_view name, const auto& parts) {
  return std::any_of(std::begin(parts), std::end(parts), [&](std::string_view part) { return contains(name, part); });
}

bool is_matrix(const Shape& shape) {
  return shape.rank() >= 2 && shape.count() / shape[shape.rank() - 1] > 1;  // of one row it is a vector
}

bool stays_float32(const GgufMixTensor& tensor) {
  return tensor.shape.rank() < 2 || !tensor.name.ends_with(".weight") || contains(tensor.name, "_norm.weight") ||
         has_any(tensor.name, kNeverNarrow);
}

class Chooser {
 public:
  Chooser(const GgufMix& mix, const std::vector<GgufMixTensor>& tensors, int64_t num_layers, int64_t num_experts)
      : mix_(mix), is_k_m_(mix.name.ends_with("_k_m")), num_layers_(num_layers), num_experts_(num_experts) {
    for (const GgufMixTensor& tensor : tensors) {
      is_tied_ = is_tied_ && tensor.name != "output.weight";
      num_values_ += is_value(tensor.name) ? 1 : 0;
    }
  }

  DType operator()(const GgufMixTensor& tensor) {
    if (stays_float32(tensor)) return DType::kFloat32;
    if (mix_.name == "f16") return DType::kFloat16;
    if (mix_.name == "bf16") return DType::kBFloat16;
    // The converter itself writes Q8_0, and does not spare these.
    const bool spared = mix_.name != "q8_0" && has_any(tensor.name, kNeverBlocks);
    if (spared || !is_matrix(tensor.shape)) return DType::kFloat32;
    return fitting(wanted(tensor), tensor.shape[tensor.shape.rank() - 1]);
  }

 private:
  static bool is_value(std::string_view name) {
    return contains(name, "attn_v.weight") || contains(name, "attn_qkv.weight") || contains(name, "attn_kv_b.weight");
  }
  static bool takes_more(int64_t index, int64_t count) {
    return index < count / 8 || index >= 7 * count / 8 || (index - count / 8) % 3 == 2;
  }

  // With experts the tensors of a layer need not be together, so the name tells the layer.
  int64_t layer_of(std::string_view name, int64_t counted) const {
    int64_t layer = 0;
    if (num_experts_ <= 1 || !name.starts_with("blk.")) return counted;
    const auto [end, error] = std::from_chars(name.data() + 4, name.data() + name.size(), layer);
    return error == std::errc() ? layer : counted;
  }

  std::string_view wanted(const GgufMixTensor& tensor) {
    const std::string_view name = tensor.name;
    if (name == "output.weight" || (is_tied_ && name == "token_embd.weight")) {
      if (mix_.type == "Q8_0" || tensor.shape[tensor.shape.rank() - 1] % block_elements(mix_.type) != 0) return "Q8_0";
      return "Q6_K";
    }
    const bool many = num_experts_ == kManyExperts;
    if (is_value(name)) {
      const int64_t index = values_++;
      if (many) return "Q8_0";
      return is_k_m_ && takes_more(index, num_values_) ? "Q6_K" : mix_.type;
    }
    if (contains(name, "attn_k.weight")) return many ? "Q8_0" : mix_.type;
    if (contains(name, "attn_output.weight")) return many && mix_.name == "q4_k_m" ? "Q5_K" : mix_.type;
    if (contains(name, "ffn_down")) {
      const int64_t index = layer_of(name, downs_++);
      return is_k_m_ && takes_more(index, num_layers_) ? "Q6_K" : mix_.type;
    }
    return mix_.type;
  }

  static int64_t block_elements(std::string_view type) { return find_block_type(*quantized_dtype(type))->elements; }

  // Where rows are no whole blocks: the next better type with shorter ones, then none.
  static DType fitting(std::string_view type, int64_t row) {
    if (row % block_elements(type) == 0) return *quantized_dtype(type);
    if (type == "Q4_K") return fitting("Q5_0", row);
    if (type == "Q5_K") return fitting("Q5_1", row);
    if (type == "Q6_K") return fitting("Q8_0", row);
    return DType::kFloat16;
  }

  const GgufMix& mix_;
  bool is_k_m_;
  int64_t num_layers_, num_experts_;
  bool is_tied_ = true;
  int64_t num_values_ = 0, values_ = 0, downs_ = 0;
};

}  // namespace

const std::vector<GgufMix>& gguf_mixes() {
  static const std::vector<GgufMix> kMixes = {
      {"f32", "float32", 0, "exact, 4 bytes a weight"},
      {"f16", "float16", 1, "matrices in float16, 2 bytes a weight"},
      {"bf16", "bfloat16", 32, "matrices in bfloat16: exact where the source is bfloat16"},
      {"q8_0", "Q8_0", 7, "8.5 bits a weight, hardly to be told from the original"},
      {"q6_k", "Q6_K", 18, "6.6 bits"},
      {"q5_k_m", "Q5_K", 17, "5.5 bits, some tensors 6.6"},
      {"q4_k_m", "Q4_K", 15, "4.5 bits, some tensors 6.6: the usual choice for little memory"},
      {"q4_0", "Q4_0", 2, "4.5 bits, the fastest to compute, less exact than q4_k_m"},
  };
  return kMixes;
}

const GgufMix* find_gguf_mix(std::string_view name) noexcept {
  for (const GgufMix& mix : gguf_mixes())
    if (mix.name == name) return &mix;
  return nullptr;
}

std::vector<DType> choose_gguf_types(const GgufMix& mix, const std::vector<GgufMixTensor>& tensors, int64_t num_layers,
                                     int64_t num_experts) {
  std::vector<DType> types;
  if (mix.name == "f32") return std::vector<DType>(tensors.size(), DType::kFloat32);
  Chooser choose(mix, tensors, num_layers, num_experts);
  for (const GgufMixTensor& tensor : tensors) types.push_back(choose(tensor));
  return types;
}

std::string describe_short_rows(const GgufMix& mix, const std::vector<GgufMixTensor>& tensors,
                                const std::vector<DType>& types) {
  const std::optional<DType> own = quantized_dtype(mix.type);
  if (!own) return {};
  const int64_t elements = find_block_type(*own)->elements;
  std::map<std::string_view, int64_t> instead;
  int64_t count = 0, shortest = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Shape& shape = tensors[i].shape;
    const int64_t row = shape.rank() == 0 ? 0 : shape[shape.rank() - 1];
    if (types[i] == DType::kFloat32 || row % elements == 0) continue;
    ++instead[dtype_name(types[i])];
    shortest = count++ == 0 ? row : std::min(shortest, row);
  }
  if (count == 0) return {};
  std::string list;
  for (const auto& [name, tensors_of] : instead)
    list += fmt::format("{}{} in {}", list.empty() ? "" : ", ", tensors_of, name);
  return fmt::format(
      "{} of {} tensors have rows (of {} numbers, say) that are no multiple of the {} in a block of {}; they are kept "
      "in types with shorter blocks: {}",
      count, tensors.size(), shortest, elements, mix.type, list);
}

}  // namespace coluber
