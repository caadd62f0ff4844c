// SPDX-License-Identifier: Apache-2.0
//
// Where the recurrent kernels find the states of their rows: a state lies at base + slot * slot_stride_bytes, in
// float32, bfloat16 or float16. A row may read one slot and write another. It owns nothing and is read by all threads
// of a kernel. The rule for rows without a slot is here and nowhere else: such a row touches no state and its output is
// zero. A row without an initial state reads zeros and never loads the slot, which may hold a former request's values
// or NaN.
#pragma once

#include <cstdint>
#include <cstring>

#include "coluber/dtype.h"

namespace coluber {

// Elements of 16-bit states, so that overloads pick the conversion.
struct StateBf16 {
  uint16_t bits;
};
struct StateF16 {
  uint16_t bits;
};

struct StateSlots {
  void* base = nullptr;
  DType dtype = DType::kFloat32;  // kFloat32, kBFloat16 or kFloat16 (stores saturate at +-65504)
  int64_t slot_stride_bytes = 0;
  const int32_t* src = nullptr;  // [R], `index_stride` apart
  const int32_t* dst = nullptr;  // [R]; two rows never share one
  int64_t index_stride = 1;
  const uint8_t* has_initial_state = nullptr;  // [R]; null: every row has one
  // Rows go token by token, with the update's bits and a float32 state between tokens as between calls: then no bit
  // depends on how a prompt was cut. Kernels that never do otherwise need not ask.
  bool by_token = false;

  bool is_fresh(int64_t row) const noexcept { return has_initial_state != nullptr && has_initial_state[row] == 0; }
  bool is_null(int64_t row) const noexcept {
    return dst[row * index_stride] <= 0 || (!is_fresh(row) && src[row * index_stride] <= 0);
  }
  // Null for a row without an initial state.
  const void* source(int64_t row) const noexcept {
    if (is_fresh(row)) return nullptr;
    return static_cast<const char*>(base) + src[row * index_stride] * slot_stride_bytes;
  }
  void* target(int64_t row) const noexcept { return at(dst[row * index_stride]); }
  void* at(int32_t slot) const noexcept { return static_cast<char*>(base) + slot * slot_stride_bytes; }
  // What a reference, which computes in double, keeps of an element from one token to the next.
  double kept(double value) const noexcept { return by_token ? static_cast<double>(static_cast<float>(value)) : value; }
};

// States inside rows, for whoever goes on from there later: those of row r are [starts[r], starts[r + 1]), ascending,
// each the state after `offsets[i]` of the row's tokens (above 0, below their number), to be left in slot `slots[i]`,
// which no row uses.
struct StateExports {
  const int32_t* starts = nullptr;  // [R+1]; null: none
  const int32_t* offsets = nullptr;
  const int32_t* slots = nullptr;

  int64_t first(int64_t row) const noexcept { return starts != nullptr ? starts[row] : 0; }
  int64_t last(int64_t row) const noexcept { return starts != nullptr ? starts[row + 1] : 0; }
};

struct RowPart {
  int64_t begin, end;  // tokens
  int32_t slot;        // where the state behind them belongs
};

// The parts that `exports` cut the tokens [begin, end) of a row with a slot into, ascending: one more than places. The
// last part's slot is the row's own.
class RowParts {
 public:
  RowParts(const StateSlots& state, const StateExports& exports, int64_t row, int64_t begin, int64_t end) noexcept
      : exports_(exports),
        first_(exports.first(row)),
        last_(exports.last(row)),
        begin_(begin),
        end_(end),
        own_slot_(state.dst[row * state.index_stride]) {}

  class Iterator {
   public:
    Iterator(const RowParts& parts, int64_t place) noexcept : parts_(parts), place_(place) {}
    RowPart operator*() const noexcept { return parts_.part(place_); }
    Iterator& operator++() noexcept {
      ++place_;
      return *this;
    }
    bool operator!=(const Iterator& other) const noexcept { return place_ != other.place_; }

   private:
    const RowParts& parts_;
    int64_t place_;
  };
  Iterator begin() const noexcept { return {*this, first_}; }
  Iterator end() const noexcept { return {*this, last_ + 1}; }

 private:
  RowPart part(int64_t place) const noexcept {
    const int64_t from = place == first_ ? begin_ : begin_ + exports_.offsets[place - 1];
    if (place == last_) return {from, end_, own_slot_};
    return {from, begin_ + exports_.offsets[place], exports_.slots[place]};
  }

  StateExports exports_;
  int64_t first_, last_, begin_, end_;
  int32_t own_slot_;
};

// One element, for references and tests.
inline float load_state_element(const void* state, DType dtype, int64_t index) noexcept {
  if (dtype == DType::kFloat32) return static_cast<const float*>(state)[index];
  const uint16_t bits = static_cast<const uint16_t*>(state)[index];
  if (dtype == DType::kFloat16) {
    _Float16 half;
    std::memcpy(&half, &bits, sizeof(half));
    return static_cast<float>(half);
  }
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

inline void store_state_element(void* state, DType dtype, int64_t index, float value) noexcept {
  if (dtype == DType::kFloat32) {
    static_cast<float*>(state)[index] = value;
    return;
  }
  uint16_t bits;
  if (dtype == DType::kFloat16) {
    const float saturated = value > 65504.0f ? 65504.0f : value < -65504.0f ? -65504.0f : value;
    const _Float16 half = static_cast<_Float16>(saturated);
    std::memcpy(&bits, &half, sizeof(bits));
  } else {
    uint32_t wide;
    std::memcpy(&wide, &value, sizeof(wide));
    const bool is_nan = value != value;
    bits = static_cast<uint16_t>((is_nan ? wide | 0x400000u : wide + 0x7fffu + ((wide >> 16) & 1u)) >> 16);
  }
  static_cast<uint16_t*>(state)[index] = bits;
}

}  // namespace coluber
