// SPDX-License-Identifier: Apache-2.0
#include "models/inkling_names.h"

#include <string_view>
#include <utility>

#include "base/dtype.h"
#include "base/error.h"

namespace coluber {
namespace {

// Parts of names, in the order in which they are replaced.
constexpr std::pair<std::string_view, std::string_view> kRenamed[] = {
    {"model.llm.embed.weight", "model.language_model.embed_tokens.weight"},
    {"model.llm.unembed.weight", "lm_head.weight"},
    {"model.llm.", "model.language_model."},
    {"model.audio.", "model.audio_tower."},
    {"model.visual", "model.vision_tower"},
    {"shared_w2_weight", "down_proj"},
    {"mlp.experts.w13_weight", "mlp.experts.gate_up_proj"},
    {"mlp.experts.w2_weight", "mlp.experts.down_proj"},
    {"mlp.w2_md.weight", "mlp.down_proj.weight"},
    {"mlp.gate.bias", "mlp.gate.e_score_correction_bias"},
    {".attn.wq_du", ".self_attn.q_proj"},
    {".attn.wk_dv", ".self_attn.k_proj"},
    {".attn.wv_dv", ".self_attn.v_proj"},
    {".attn.wr_du", ".self_attn.r_proj"},
    {".attn.wo_ud", ".self_attn.o_proj"},
    {".attn.k_sconv", ".self_attn.k_sconv.conv1d"},
    {".attn.v_sconv", ".self_attn.v_sconv.conv1d"},
    {".attn.", ".self_attn."},
    {"attn_sconv.weight", "attn_sconv.conv1d.weight"},
    {"mlp_sconv.weight", "mlp_sconv.conv1d.weight"},
    {"mlp_norm", "post_attention_layernorm"},
    {"attn_norm", "input_layernorm"},
};

std::string renamed(std::string name) {
  for (const auto& [from, to] : kRenamed)
    if (const size_t at = name.find(from); at != std::string::npos) name.replace(at, from.size(), to);
  return name;
}

// The dimension whose rows alternate: the last but one.
int64_t row_dimension(const TensorView& view) { return view.shape.rank() - 2; }

Shape with_rows(Shape shape, int64_t dimension, int64_t rows) {
  shape[dimension] = rows;
  return shape;
}

}  // namespace

bool InklingFirstRelease::is_it(const WeightSource& weights) { return weights.contains("model.llm.embed.weight"); }

InklingFirstRelease::InklingFirstRelease(const WeightSource& weights) : weights_(weights) {
  for (const std::string& name : weights.names()) enter(name);
}

void InklingFirstRelease::enter(const std::string& name) {
  struct Pair {
    std::string_view both, infix, tail;
  };
  constexpr Pair kPairs[] = {{"shared_w13_weight", "", ""}, {"mlp.w13_dn.weight", "mlp.", ".weight"}};
  for (const Pair& pair : kPairs) {
    const size_t at = name.find(pair.both);
    if (at == std::string::npos) continue;
    const auto half = [&](std::string_view word) {
      std::string part(pair.infix);
      part.append(word).append(pair.tail);
      return renamed(std::string(name).replace(at, pair.both.size(), part));
    };
    parts_[half("gate_proj")] = {name, Rows::kGates};
    parts_[half("up_proj")] = {name, Rows::kGated};
    return;
  }
  const bool alternates = name.find("mlp.experts.w13_weight") != std::string::npos;
  parts_[renamed(name)] = {name, alternates ? Rows::kApart : Rows::kAsStored};
}

const InklingFirstRelease::Part& InklingFirstRelease::part(std::string_view name) const {
  const auto found = parts_.find(name);
  if (found == parts_.end())
    throw make_error(ErrorCode::kNotFound, "{}: there is no tensor for '{}'", weights_.describe(), name);
  return found->second;
}

TensorView InklingFirstRelease::view_of(const Part& part, const TensorView& whole) const {
  if (part.rows == Rows::kAsStored || part.rows == Rows::kApart) return whole;
  const int64_t dimension = row_dimension(whole);
  return TensorView::contiguous(whole.data, whole.dtype, with_rows(whole.shape, dimension, whole.shape[dimension] / 2));
}

TensorView InklingFirstRelease::peek(std::string_view name) const {
  const Part& found = part(name);
  const TensorView whole = weights_.peek(found.name);
  if (found.rows != Rows::kAsStored && (whole.shape.rank() < 2 || whole.shape[row_dimension(whole)] % 2 != 0))
    throw make_error(ErrorCode::kInvalidData,
                     "{}: tensor '{}' has the shape {}; expected two dimensions or more, with an even number of rows",
                     weights_.describe(), found.name, whole.shape.to_string());
  return view_of(found, whole);
}

TensorView InklingFirstRelease::get(std::string_view name) const {
  const TensorView wanted = peek(name);
  const Part& found = part(name);
  const TensorView whole = weights_.get(found.name);
  if (found.rows == Rows::kAsStored) return whole;
  const int64_t dimension = row_dimension(whole), rows = whole.shape[dimension];
  const int64_t row_bytes = dtype_bytes(whole.dtype, whole.shape[dimension + 1]);
  const int64_t matrices = rows > 0 && row_bytes > 0 ? whole.size_bytes() / (rows * row_bytes) : 0;
  std::vector<std::byte> bytes(static_cast<size_t>(wanted.size_bytes()));
  std::byte* to = bytes.data();
  for (int64_t m = 0; m < matrices; ++m) {
    const std::byte* from = whole.data + m * rows * row_bytes;
    for (int64_t half : {0, 1}) {
      if (found.rows != Rows::kApart && half != (found.rows == Rows::kGates ? 0 : 1)) continue;
      for (int64_t r = half; r < rows; r += 2, to += row_bytes) std::memcpy(to, from + r * row_bytes, row_bytes);
    }
  }
  weights_.release(whole);
  const std::byte* data = bytes.data();
  ordered_[data] = std::move(bytes);
  return TensorView::contiguous(data, wanted.dtype, wanted.shape);
}

void InklingFirstRelease::release(const TensorView& view) const noexcept {
  if (ordered_.erase(view.data) == 0) weights_.release(view);
}

std::vector<std::string> InklingFirstRelease::names() const {
  std::vector<std::string> names;
  for (const auto& entry : parts_) names.push_back(entry.first);
  return names;
}

}  // namespace coluber
