// SPDX-License-Identifier: Apache-2.0
#include "cache/session_layout.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "cache/arithmetic.h"

namespace coluber {
namespace {

using Bytes = std::vector<std::byte>;

constexpr int64_t kLanes = 16;

// Calls move(place in the lanes' order, place in the contract's) for every element.
template <typename Move>
void for_lanes(const Shape& shape, StateLaneOrder order, Move&& move) {
  const int axis = order == StateLaneOrder::kHeadBlock16 ? 1 : 0;
  COLUBER_CHECK(shape.rank() >= axis + 2, "a state in channel blocks has shape {}", shape.to_string());
  const int64_t count = shape.count();
  if (count == 0) return;
  const int64_t heads = axis == 1 ? shape[0] : 1, channels = shape[axis];
  const int64_t head_size = count / heads, inner = head_size / channels;
  for (int64_t h = 0; h < heads; ++h)
    for (int64_t first = 0; first < channels; first += kLanes) {
      const int64_t width = std::min(kLanes, channels - first), base = h * head_size + first * inner;
      for (int64_t n = 0; n < inner; ++n)
        for (int64_t lane = 0; lane < width; ++lane) move(base + n * width + lane, base + lane * inner + n);
    }
}

template <typename Move>
void for_transposed(const Shape& shape, Move&& move) {
  const int64_t rows = shape[0], cols = shape[1];
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c) move(c * rows + r, r * cols + c);
}

// One state between the order that it is kept in and the contract's.
template <bool kToContract>
void reorder(const SavedState& state, const std::byte* from, std::byte* to) {
  const auto element = static_cast<size_t>(dtype_size(state.dtype));
  const auto move = [&](int64_t kept, int64_t contract) {
    const auto source = static_cast<size_t>(kToContract ? kept : contract) * element;
    const auto target = static_cast<size_t>(kToContract ? contract : kept) * element;
    std::memcpy(to + target, from + source, element);
  };
  if (state.order != StateLaneOrder::kContract)
    for_lanes(state.shape, state.order, move);
  else if (state.conv == ConvLayout::kDs)
    for_transposed(state.shape, move);
  else
    std::memcpy(to, from, static_cast<size_t>(state.bytes()));
}

std::string label(const SavedLayer& layer, const SavedState& state) {
  return fmt::format("layer '{}', state '{}'", layer.name, state.name);
}

StateSplit heads_split(const SavedAttention& attention) {
  StateSplit split;
  if (attention.planes > 1) split.parts = {{attention.whole_kv_heads, attention.whole_kv_heads, true}};
  return split;
}
std::string attention_label(const SavedLayer& layer) { return fmt::format("layer '{}', attention heads", layer.name); }

bool is_same_share(const SavedState& a, const SavedState& b) {
  return a.shape == b.shape && a.order == b.order && a.conv == b.conv;
}

// The state of all ranks together, in the contract's order.
Bytes join_state(std::span<const SessionPart> parts, size_t layer, size_t index) {
  const SavedLayer& first = parts[0].layout->layers[layer];
  const SavedState& whole = first.states[index];
  const int64_t element = dtype_size(whole.dtype);
  Bytes joined(static_cast<size_t>(dtype_bytes(whole.dtype, whole.whole_shape.count())));
  Bytes share;
  for (const SessionPart& part : parts) {
    const SavedState& state = part.layout->layers[layer].states[index];
    share.resize(static_cast<size_t>(state.bytes()));
    reorder<true>(state, part.bytes->states.data() + state.offset, share.data());
    put_share(whole.split, whole.whole_shape, part.layout->rank, element, share, joined, label(first, whole));
  }
  return joined;
}

void convert_states(std::span<const SessionPart> parts, const SessionLayout& to, std::byte* out) {
  Bytes share;
  for (size_t l = 0; l < to.layers.size(); ++l) {
    for (size_t i = 0; i < to.layers[l].states.size(); ++i) {
      const SavedState& target = to.layers[l].states[i];
      const SavedState& source = parts[0].layout->layers[l].states[i];
      if (parts.size() == 1 && to.rank.size == 1 && is_same_share(source, target)) {
        std::memcpy(out + target.offset, parts[0].bytes->states.data() + source.offset,
                    static_cast<size_t>(target.bytes()));
        continue;
      }
      const Bytes joined = join_state(parts, l, i);
      share.resize(static_cast<size_t>(target.bytes()));
      take_share(target.split, target.whole_shape, to.rank, dtype_size(target.dtype), joined, share,
                 label(to.layers[l], target));
      reorder<false>(target, share.data(), out + target.offset);
    }
  }
}

// A token's bytes in a page: [plane][token][heads * head_size], then [token][extra].
struct TokenPlace {
  int64_t plane_bytes, row_bytes, extra_begin, extra_bytes;
};
TokenPlace token_place(const SavedAttention& attention, int64_t block_size) {
  const int64_t element = dtype_size(attention.dtype), row = attention.kv_heads * attention.head_size * element;
  return {block_size * row, row, attention.planes * block_size * row, attention.extra * element};
}

// Token `t` of every part, put together in `rows` ([planes][whole heads * head_size], then extra) and shared out again.
class TokenMover {
 public:
  TokenMover(std::span<const SessionPart> parts, const SessionLayout& to, size_t layer)
      : parts_(parts), to_(to), layer_(layer), target_(*to.layers[layer].attention) {
    const int64_t element = dtype_size(target_.dtype);
    head_bytes_ = target_.head_size * element;
    whole_row_.resize(static_cast<size_t>(target_.whole_kv_heads * head_bytes_));
    heads_ = Shape{target_.whole_kv_heads};
    place_ = token_place(target_, to.block_size);
  }

  void move(int64_t t, std::vector<Bytes>& pages) {
    std::byte* page = pages[static_cast<size_t>(t / to_.block_size)].data() + target_.offset;
    const int64_t at = t % to_.block_size;
    const std::string what = attention_label(to_.layers[layer_]);
    for (int64_t plane = 0; plane < target_.planes; ++plane) {
      for (const SessionPart& part : parts_) {
        const SavedAttention& from = *part.layout->layers[layer_].attention;
        const std::byte* row = row_of(part, from, t, plane);
        const auto bytes = static_cast<size_t>(from.kv_heads * head_bytes_);
        put_share(heads_split(from), heads_, part.layout->rank, head_bytes_, {row, bytes}, whole_row_, what);
      }
      const std::span<std::byte> out(page + plane * place_.plane_bytes + at * place_.row_bytes,
                                     static_cast<size_t>(place_.row_bytes));
      take_share(heads_split(target_), heads_, to_.rank, head_bytes_, whole_row_, out, what);
    }
    if (place_.extra_bytes == 0) return;
    const SessionPart& part = parts_[0];
    const SavedAttention& from = *part.layout->layers[layer_].attention;
    const TokenPlace source = token_place(from, part.layout->block_size);
    std::memcpy(page + place_.extra_begin + at * place_.extra_bytes,
                page_of(part, from, t) + source.extra_begin + t % part.layout->block_size * source.extra_bytes,
                static_cast<size_t>(place_.extra_bytes));
  }

 private:
  static const std::byte* page_of(const SessionPart& part, const SavedAttention& from, int64_t t) {
    return part.bytes->pages[static_cast<size_t>(t / part.layout->block_size)].data() + from.offset;
  }
  static const std::byte* row_of(const SessionPart& part, const SavedAttention& from, int64_t t, int64_t plane) {
    const TokenPlace source = token_place(from, part.layout->block_size);
    return page_of(part, from, t) + plane * source.plane_bytes + t % part.layout->block_size * source.row_bytes;
  }

  std::span<const SessionPart> parts_;
  const SessionLayout& to_;
  size_t layer_;
  const SavedAttention& target_;
  int64_t head_bytes_ = 0;
  Bytes whole_row_;
  Shape heads_;
  TokenPlace place_{};
};

bool are_pages_equal(const SessionLayout& a, const SessionLayout& b) {
  if (a.block_size != b.block_size || a.page_bytes != b.page_bytes || a.rank != b.rank) return false;
  for (size_t l = 0; l < a.layers.size(); ++l)
    if (a.layers[l].attention != b.layers[l].attention) return false;
  return true;
}

void check_parts(std::span<const SessionPart> parts, const SessionLayout& to) {
  COLUBER_CHECK(!parts.empty(), "a session of no parts");
  if (const std::string why = difference(*parts[0].layout, to); !why.empty()) throw Error(ErrorCode::kInvalidData, why);
  for (size_t i = 0; i < parts.size(); ++i) {
    const TensorParallelRank& rank = parts[i].layout->rank;
    const auto expected = static_cast<int64_t>(i);
    if (rank.size != std::ssize(parts) || rank.rank != expected)
      throw make_error(ErrorCode::kInvalidData,
                       "part {} of {} is the share of rank {} of {}; name the shares of all {} ranks, each once", i,
                       parts.size(), rank.rank, rank.size, rank.size);
    if (const std::string why = difference(*parts[0].layout, *parts[i].layout); !why.empty())
      throw make_error(ErrorCode::kInvalidData, "part {} of {} is of another session: {}", i, parts.size(), why);
  }
}

}  // namespace

int64_t SavedAttention::bytes(int64_t block_size) const {
  const int64_t token = checked_add(checked_mul(checked_mul(planes, kv_heads), head_size), extra);
  return dtype_bytes(dtype, checked_mul(block_size, token));
}

int64_t SavedLayer::state_bytes() const {
  int64_t bytes = 0;
  for (const SavedState& state : states) bytes = checked_add(bytes, state.bytes());
  return bytes;
}

SessionLayout changed_layout(const SessionLayout& from, const LayoutChange& change) {
  SessionLayout to = from;
  to.packing = change.packing.value_or(from.packing);
  to.rank = change.rank;
  if (to.block_size > 0) to.block_size = change.block_size.value_or(from.block_size);
  const int64_t alignment = to.packing == StatePacking::kAligned ? kStateAlignment : 1;
  to.slot_bytes = to.page_bytes = 0;
  for (SavedLayer& layer : to.layers) {
    for (SavedState& state : layer.states) {
      const SavedState before = state;
      if (change.conv && state.is_conv_window()) state.conv = *change.conv;
      state.shape = local_shape(state.split, state.whole_shape, to.rank, label(layer, state));
      // A kernel's own order is nobody else's business.
      const bool is_own =
          to.packing == StatePacking::kAligned && state.conv == ConvLayout::kSd && state.shape == before.shape;
      if (!is_own) state.order = StateLaneOrder::kContract;
      state.offset = round_up(to.slot_bytes, alignment);
      to.slot_bytes = checked_add(state.offset, state.bytes());
    }
    if (!layer.states.empty()) to.slot_bytes = round_up(to.slot_bytes, alignment);
    if (!layer.attention) continue;
    SavedAttention& attention = *layer.attention;
    const Shape heads{attention.whole_kv_heads};
    attention.kv_heads = local_shape(heads_split(attention), heads, to.rank, attention_label(layer))[0];
    attention.offset = round_up(to.page_bytes, alignment);
    to.page_bytes = round_up(checked_add(attention.offset, attention.bytes(to.block_size)), alignment);
  }
  return to;
}

SessionBytes convert_session(std::span<const SessionPart> parts, const SessionLayout& to, int64_t num_tokens) {
  check_parts(parts, to);
  SessionBytes out;
  auto states = std::make_shared<Bytes>(static_cast<size_t>(to.slot_bytes));
  convert_states(parts, to, states->data());
  out.states = *states;
  out.owners.push_back(std::move(states));
  if (to.block_size == 0) return out;
  if (parts.size() == 1 && are_pages_equal(*parts[0].layout, to)) {
    out.pages = parts[0].bytes->pages;
    out.owners.insert(out.owners.end(), parts[0].bytes->owners.begin(), parts[0].bytes->owners.end());
    return out;
  }
  auto pages = std::make_shared<std::vector<Bytes>>(static_cast<size_t>(to.num_pages(num_tokens)),
                                                    Bytes(static_cast<size_t>(to.page_bytes)));
  for (size_t l = 0; l < to.layers.size(); ++l) {
    if (!to.layers[l].attention) continue;
    TokenMover mover(parts, to, l);
    for (int64_t t = 0; t < num_tokens; ++t) mover.move(t, *pages);
  }
  for (const Bytes& page : *pages) out.pages.emplace_back(page);
  out.owners.push_back(std::move(pages));
  return out;
}

namespace {

std::string state_difference(const SavedLayer& layer, const SavedState& a, const SavedState& b) {
  if (a.name != b.name) return fmt::format("layer '{}' has a state '{}' and one '{}'", layer.name, a.name, b.name);
  if (a.dtype != b.dtype)
    return fmt::format("{} is {} and {}", label(layer, a), dtype_name(a.dtype), dtype_name(b.dtype));
  if (!(a.whole_shape == b.whole_shape))
    return fmt::format("{} has shape {} and {}", label(layer, a), a.whole_shape.to_string(), b.whole_shape.to_string());
  if (a.split != b.split) return fmt::format("{} is shared out in different ways", label(layer, a));
  return {};
}

std::string attention_difference(const SavedLayer& layer, const SavedAttention& a, const SavedAttention& b) {
  if (a.dtype != b.dtype)
    return fmt::format("layer '{}' has {} and {} attention pages", layer.name, dtype_name(a.dtype),
                       dtype_name(b.dtype));
  if (a.planes != b.planes || a.whole_kv_heads != b.whole_kv_heads || a.head_size != b.head_size || a.extra != b.extra)
    return fmt::format("layer '{}' has {} planes of {} heads of {} with {} beside them, and {} of {} of {} with {}",
                       layer.name, a.planes, a.whole_kv_heads, a.head_size, a.extra, b.planes, b.whole_kv_heads,
                       b.head_size, b.extra);
  return {};
}

}  // namespace

std::string difference(const SessionLayout& a, const SessionLayout& b) {
  if (a.layers.size() != b.layers.size())
    return fmt::format("{} layers with a cache and {}", a.layers.size(), b.layers.size());
  for (size_t l = 0; l < a.layers.size(); ++l) {
    const SavedLayer &x = a.layers[l], &y = b.layers[l];
    if (x.name != y.name) return fmt::format("layer {} is '{}' and '{}'", l, x.name, y.name);
    for (size_t i = 0; i < std::min(x.states.size(), y.states.size()); ++i)
      if (std::string why = state_difference(x, x.states[i], y.states[i]); !why.empty()) return why;
    if (x.states.size() != y.states.size())
      return fmt::format("layer '{}' has {} states and {}", x.name, x.states.size(), y.states.size());
    if (x.attention.has_value() != y.attention.has_value())
      return fmt::format("layer '{}' has attention pages in one of them only", x.name);
    if (!x.attention) continue;
    if (std::string why = attention_difference(x, *x.attention, *y.attention); !why.empty()) return why;
  }
  return {};
}

}  // namespace coluber
