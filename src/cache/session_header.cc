// SPDX-License-Identifier: Apache-2.0
#include "cache/session_header.h"

#include <charconv>
#include <limits>

#include "base/error.h"

namespace coluber {
namespace {

constexpr int64_t kMost = int64_t{1} << 40;  // of any size; products are checked on their own

std::string_view packing_name(StatePacking packing) { return packing == StatePacking::kAligned ? "aligned" : "packed"; }
std::string_view conv_name(ConvLayout conv) { return conv == ConvLayout::kSd ? "SD" : "DS"; }
std::string_view order_name(StateLaneOrder order) {
  switch (order) {
    case StateLaneOrder::kContract:
      return "contract";
    case StateLaneOrder::kChannelBlock16:
      return "channel_block16";
    case StateLaneOrder::kHeadBlock16:
      return "head_block16";
  }
  return "contract";
}

Json shape_json(const Shape& shape) { return Json(Json::Array(shape.begin(), shape.end())); }

Json state_json(const SavedState& state) {
  Json::Array parts;
  for (const StateSplit::Part& part : state.split.parts)
    parts.emplace_back(Json::Object{{"size", part.size}, {"units", part.units}, {"may_repeat", part.may_repeat}});
  return Json::Object{{"name", state.name},
                      {"dtype", dtype_name(state.dtype)},
                      {"shape", shape_json(state.shape)},
                      {"whole_shape", shape_json(state.whole_shape)},
                      {"split_axis", state.split.axis},
                      {"split_parts", std::move(parts)},
                      {"order", order_name(state.order)},
                      {"conv", conv_name(state.conv)},
                      {"offset", state.offset}};
}

Json layer_json(const SavedLayer& layer) {
  Json out = Json::Object{{"name", layer.name}, {"kind", layer.kind}};
  Json::Array states;
  for (const SavedState& state : layer.states) states.push_back(state_json(state));
  out.set("states", std::move(states));
  if (!layer.attention) return out;
  const SavedAttention& a = *layer.attention;
  out.set("attention", Json::Object{{"dtype", dtype_name(a.dtype)},
                                    {"planes", a.planes},
                                    {"kv_heads", a.kv_heads},
                                    {"whole_kv_heads", a.whole_kv_heads},
                                    {"head_size", a.head_size},
                                    {"extra", a.extra},
                                    {"offset", a.offset}});
  return out;
}

Json layout_json(const SessionLayout& layout) {
  Json::Array layers;
  for (const SavedLayer& layer : layout.layers) layers.push_back(layer_json(layer));
  return Json::Object{{"packing", packing_name(layout.packing)},
                      {"tensor_parallel_size", layout.rank.size},
                      {"tensor_parallel_rank", layout.rank.rank},
                      {"block_size", layout.block_size},
                      {"slot_bytes", layout.slot_bytes},
                      {"page_bytes", layout.page_bytes},
                      {"layers", std::move(layers)}};
}

[[noreturn]] void refuse(std::string_view where, const std::string& problem) {
  throw make_error(ErrorCode::kInvalidData, "{}: {}", where, problem);
}

int64_t take_int(const Json& json, std::string_view key, int64_t low, int64_t high, std::string_view where) {
  const int64_t value = json.at(key).as_int();
  if (value < low || value > high) refuse(where, fmt::format("{} is {}, expected {} to {}", key, value, low, high));
  return value;
}

DType take_dtype(const Json& json, std::string_view where) {
  const std::string& name = json.at("dtype").as_string();
  const std::optional<DType> dtype = parse_dtype(name);
  if (!dtype || dtype_bits(*dtype) < 8)
    refuse(where, fmt::format("dtype is '{}', expected a known one of whole bytes", name));
  return *dtype;
}

Hash128 take_hash(const Json& json, std::string_view key, std::string_view where) {
  const std::string& text = json.at(key).as_string();
  Hash128 hash;
  const auto half = [&text](size_t begin, uint64_t* value) {
    const char* from = text.data() + begin;
    return std::from_chars(from, from + 16, *value, 16).ptr == from + 16;
  };
  if (text.size() != 32 || !half(0, &hash.high) || !half(16, &hash.low))
    refuse(where, fmt::format("{} is '{}', expected 32 hexadecimal digits", key, text.substr(0, 64)));
  return hash;
}

Shape take_shape(const Json& json, std::string_view key, std::string_view where) {
  const Json::Array& sizes = json.at(key).as_array();
  if (sizes.empty() || sizes.size() > static_cast<size_t>(kMaxRank))
    refuse(where, fmt::format("{} has {} sizes, expected 1 to {}", key, sizes.size(), kMaxRank));
  std::vector<int64_t> values;
  int64_t count = 1;
  for (const Json& size : sizes) {
    values.push_back(size.as_int());
    if (values.back() < 0 || __builtin_mul_overflow(count, values.back(), &count) || count > kMost)
      refuse(where, fmt::format("{} is too large or negative", key));
  }
  return Shape(std::span<const int64_t>(values));
}

// An element [a, b) of the bytes that the layout claims.
void check_place(int64_t offset, int64_t bytes, int64_t all, std::string_view where) {
  if (bytes > all - offset) refuse(where, fmt::format("takes bytes {} to {} of {}", offset, offset + bytes, all));
}

SavedState parse_state(const Json& json, const SessionLayout& layout, const std::string& where) {
  SavedState state;
  state.name = json.at("name").as_string();
  state.dtype = take_dtype(json, where);
  state.shape = take_shape(json, "shape", where);
  state.whole_shape = take_shape(json, "whole_shape", where);
  state.split.axis = static_cast<int>(take_int(json, "split_axis", 0, state.whole_shape.rank() - 1, where));
  for (const Json& part : json.at("split_parts").as_array())
    state.split.parts.push_back({take_int(part, "size", 1, kMost, where), take_int(part, "units", 1, kMost, where),
                                 part.at("may_repeat").as_bool()});
  if (!(local_shape(state.split, state.whole_shape, layout.rank, where) == state.shape))
    refuse(where, fmt::format("shape {} is not the rank's share of {}", state.shape.to_string(),
                              state.whole_shape.to_string()));
  const std::string& order = json.at("order").as_string();
  for (const StateLaneOrder known :
       {StateLaneOrder::kContract, StateLaneOrder::kChannelBlock16, StateLaneOrder::kHeadBlock16})
    if (order == order_name(known)) state.order = known;
  if (order != order_name(state.order)) refuse(where, fmt::format("order '{}' is not known", order));
  if (state.order != StateLaneOrder::kContract &&
      state.shape.rank() < (state.order == StateLaneOrder::kHeadBlock16 ? 3 : 2))
    refuse(where, fmt::format("order '{}' of a state of shape {}", order, state.shape.to_string()));
  const std::string& conv = json.at("conv").as_string();
  if (conv != "SD" && (conv != "DS" || !state.is_conv_window() || state.order != StateLaneOrder::kContract))
    refuse(where,
           fmt::format("conv is '{}', expected SD, or DS for a convolution's window in the contract's order", conv));
  state.conv = conv == "DS" ? ConvLayout::kDs : ConvLayout::kSd;
  state.offset = take_int(json, "offset", 0, layout.slot_bytes, where);
  check_place(state.offset, state.bytes(), layout.slot_bytes, where);
  return state;
}

SavedAttention parse_attention(const Json& json, const SessionLayout& layout, const std::string& where) {
  SavedAttention attention;
  constexpr int64_t kMostHeads = 1 << 20;
  attention.dtype = take_dtype(json, where);
  attention.planes = take_int(json, "planes", 1, 2, where);
  attention.kv_heads = take_int(json, "kv_heads", 1, kMostHeads, where);
  attention.whole_kv_heads = take_int(json, "whole_kv_heads", 1, kMostHeads, where);
  attention.head_size = take_int(json, "head_size", 1, kMostHeads, where);
  attention.extra = take_int(json, "extra", 0, kMostHeads, where);
  attention.offset = take_int(json, "offset", 0, layout.page_bytes, where);
  if (layout.block_size == 0) refuse(where, "attention pages in a session whose pages hold no tokens");
  StateSplit split;
  if (attention.planes > 1) split.parts = {{attention.whole_kv_heads, attention.whole_kv_heads, true}};
  if (local_shape(split, Shape{attention.whole_kv_heads}, layout.rank, where)[0] != attention.kv_heads)
    refuse(where, fmt::format("{} heads are not the rank's share of {}", attention.kv_heads, attention.whole_kv_heads));
  check_place(attention.offset, attention.bytes(layout.block_size), layout.page_bytes, where);
  return attention;
}

SessionLayout parse_layout(const Json& json) {
  SessionLayout layout;
  const std::string& packing = json.at("packing").as_string();
  if (packing != "aligned" && packing != "packed")
    refuse("layout", fmt::format("packing is '{}', expected aligned or packed", packing));
  layout.packing = packing == "aligned" ? StatePacking::kAligned : StatePacking::kContract;
  layout.rank.size = take_int(json, "tensor_parallel_size", 1, 1024, "layout");
  layout.rank.rank = take_int(json, "tensor_parallel_rank", 0, layout.rank.size - 1, "layout");
  layout.block_size = take_int(json, "block_size", 0, 1 << 20, "layout");
  layout.slot_bytes = take_int(json, "slot_bytes", 0, kMost, "layout");
  layout.page_bytes = take_int(json, "page_bytes", layout.block_size > 0 ? 1 : 0, kMost, "layout");
  if (layout.block_size == 0 && layout.page_bytes > 0) refuse("layout", "pages of bytes that hold no tokens");
  for (const Json& entry : json.at("layers").as_array()) {
    SavedLayer layer;
    layer.name = entry.at("name").as_string();
    layer.kind = entry.at("kind").as_string();
    const std::string where = fmt::format("layer {}", layout.layers.size());
    for (const Json& state : entry.at("states").as_array())
      layer.states.push_back(parse_state(state, layout, fmt::format("{}, state {}", where, layer.states.size())));
    if (const Json* attention = entry.find("attention")) layer.attention = parse_attention(*attention, layout, where);
    if (layer.attention && !layer.states.empty()) refuse(where, "has states and attention pages");
    layout.layers.push_back(std::move(layer));
  }
  return layout;
}

SessionSampler parse_sampler(const Json& json, int64_t num_tokens) {
  SessionSampler sampler;
  const std::string& seed = json.at("seed").as_string();  // 64 bits do not fit JSON's integers
  const char* end = seed.data() + seed.size();
  if (seed.empty() || std::from_chars(seed.data(), end, sampler.seed).ptr != end)
    refuse("sampler", fmt::format("seed is '{}', expected a whole number", seed.substr(0, 64)));
  sampler.has_seed = json.at("has_seed").as_bool();
  sampler.position = take_int(json, "position", 0, std::numeric_limits<int64_t>::max() / 2, "sampler");
  sampler.answer_start = take_int(json, "answer_start", -1, num_tokens, "sampler");
  return sampler;
}

}  // namespace

Json session_header_json(const SessionHeader& header) {
  const SessionImage& image = header.image;
  Json::Object sections;
  for (size_t i = 0; i < kSessionSections.size(); ++i)
    sections.emplace_back(
        std::string(kSessionSections[i]),
        Json::Object{{"bytes", header.sections[i].bytes}, {"checksum", header.sections[i].checksum.to_string()}});
  const SessionSampler& sampler = image.sampler;
  return Json::Object{{"model", Json::Object{{"name", image.model_name},
                                             {"architecture", image.architecture},
                                             {"fingerprint", image.fingerprint.to_string()},
                                             {"vocab_size", image.vocab_size}}},
                      {"num_tokens", header.num_tokens},
                      {"num_computed_tokens", image.num_computed_tokens},
                      {"prefix", header.prefix.to_string()},
                      {"long_positions", image.long_positions},
                      {"sampler", Json::Object{{"seed", std::to_string(sampler.seed)},
                                               {"has_seed", sampler.has_seed},
                                               {"position", sampler.position},
                                               {"answer_start", sampler.answer_start}}},
                      {"layout", layout_json(image.layout)},
                      {"sections", std::move(sections)}};
}

SessionHeader parse_session_header(const Json& json) {
  SessionHeader header;
  SessionImage& image = header.image;
  constexpr int64_t kMostTokens = std::numeric_limits<int32_t>::max();
  const Json& model = json.at("model");
  image.model_name = model.at("name").as_string();
  image.architecture = model.at("architecture").as_string();
  image.fingerprint = take_hash(model, "fingerprint", "model");
  image.vocab_size = take_int(model, "vocab_size", 1, kMostTokens, "model");
  header.num_tokens = take_int(json, "num_tokens", 1, kMostTokens, "counts");
  image.num_computed_tokens = take_int(json, "num_computed_tokens", 1, header.num_tokens, "counts");
  header.prefix = take_hash(json, "prefix", "counts");
  image.long_positions = json.at("long_positions").as_bool();
  image.sampler = parse_sampler(json.at("sampler"), header.num_tokens);
  image.layout = parse_layout(json.at("layout"));
  const Json& sections = json.at("sections");
  for (size_t i = 0; i < kSessionSections.size(); ++i) {
    const Json& section = sections.at(kSessionSections[i]);
    header.sections[i].bytes = take_int(section, "bytes", 0, int64_t{1} << 50, kSessionSections[i]);
    header.sections[i].checksum = take_hash(section, "checksum", kSessionSections[i]);
  }
  return header;
}

}  // namespace coluber
