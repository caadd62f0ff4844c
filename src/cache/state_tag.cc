// SPDX-License-Identifier: Apache-2.0
#include "cache/state_tag.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace coluber {

static_assert(std::endian::native == std::endian::little, "hashes are defined over little-endian bytes");

std::string Hash128::to_string() const { return fmt::format("{:016x}{:016x}", high, low); }

Hash128 hash_bytes(const void* data, int64_t bytes, uint64_t seed) {
  const XXH128_hash_t hash = XXH3_128bits_withSeed(data, static_cast<size_t>(bytes), seed);
  return {hash.low64, hash.high64};
}

struct HashStream::State {
  XXH3_state_t xxh;
};

HashStream::HashStream() : state_(std::make_unique<State>()) { XXH3_128bits_reset(&state_->xxh); }
HashStream::~HashStream() = default;
void HashStream::update(std::span<const std::byte> bytes) {
  XXH3_128bits_update(&state_->xxh, bytes.data(), bytes.size());
}
Hash128 HashStream::value() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(&state_->xxh);
  return {hash.low64, hash.high64};
}

void PrefixHash::extend(int32_t token) {
  std::array<std::byte, sizeof(Hash128) + sizeof(token)> link;
  std::memcpy(link.data(), &value_.low, sizeof(value_.low));
  std::memcpy(link.data() + sizeof(value_.low), &value_.high, sizeof(value_.high));
  std::memcpy(link.data() + sizeof(Hash128), &token, sizeof(token));
  value_ = hash_bytes(link.data(), static_cast<int64_t>(link.size()));
  ++num_tokens_;
}

void PrefixHash::extend(std::span<const int32_t> tokens) {
  for (const int32_t token : tokens) extend(token);
}

StateTagTable::StateTagTable(std::string pool_name, int64_t num_slots)
    : pool_name_(std::move(pool_name)), num_slots_(num_slots) {
  if (num_slots < 1)
    throw make_error(ErrorCode::kInvalidConfig, "tags of pool '{}': {} slots, expected at least 1", pool_name_,
                     num_slots);
}

void StateTagTable::check_slot(int32_t slot) const {
  COLUBER_CHECK(slot > 0 && slot < num_slots(), "pool '{}': slot {} of {} (0 is the null slot)", pool_name_, slot,
                num_slots());
}

void StateTagTable::expect(int32_t slot, const StateTag& expected) const {
  check_slot(slot);
  const StateTag& tag = at(slot);
  COLUBER_CHECK(tag.written, "pool '{}': slot {} is read at position {} but nothing was written to it", pool_name_,
                slot, expected.position);
  COLUBER_CHECK(tag.position == expected.position,
                "pool '{}': slot {} holds the state after {} tokens, the step reads it after {}", pool_name_, slot,
                tag.position, expected.position);
  COLUBER_CHECK(tag.prefix == expected.prefix,
                "pool '{}': slot {} holds the state of prefix {}, the step reads prefix {}", pool_name_, slot,
                tag.prefix.to_string(), expected.prefix.to_string());
  COLUBER_CHECK(tag.model == expected.model, "pool '{}': slot {} holds a state of model {}, the step runs model {}",
                pool_name_, slot, tag.model.to_string(), expected.model.to_string());
  COLUBER_CHECK(tag.layout_id == expected.layout_id,
                "pool '{}': slot {} holds a state in layout {:x}, the step reads layout {:x}", pool_name_, slot,
                tag.layout_id, expected.layout_id);
  if (tag.checksum && expected.checksum)
    COLUBER_CHECK(*tag.checksum == *expected.checksum, "pool '{}': slot {} holds bytes of checksum {}, expected {}",
                  pool_name_, slot, tag.checksum->to_string(), expected.checksum->to_string());
}

StateTag& StateTagTable::held(int32_t slot) {
  check_slot(slot);
  if (static_cast<size_t>(slot) >= tags_.size()) tags_.resize(static_cast<size_t>(slot) + 1);
  return tags_[static_cast<size_t>(slot)];
}

void StateTagTable::advance(int32_t slot, const StateTag& tag) {
  StateTag& place = held(slot);
  place = tag;
  place.written = true;
}

void StateTagTable::clear(int32_t slot) { held(slot) = StateTag{}; }

const StateTag& StateTagTable::at(int32_t slot) const {
  static const StateTag kNothing;
  check_slot(slot);
  return static_cast<size_t>(slot) < tags_.size() ? tags_[static_cast<size_t>(slot)] : kNothing;
}

}  // namespace coluber
