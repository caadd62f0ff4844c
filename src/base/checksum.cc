// SPDX-License-Identifier: Apache-2.0
#include "base/checksum.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace coluber {

struct Checksum::State {
  XXH3_state_t hash;
};

Checksum::Checksum() : state_(std::make_unique<State>()) { XXH3_64bits_reset(&state_->hash); }
Checksum::~Checksum() = default;

void Checksum::add(std::span<const std::byte> bytes) noexcept {
  XXH3_64bits_update(&state_->hash, bytes.data(), bytes.size());
}

uint64_t Checksum::value() const noexcept { return XXH3_64bits_digest(&state_->hash); }

}  // namespace coluber
