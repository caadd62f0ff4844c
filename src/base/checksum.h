// SPDX-License-Identifier: Apache-2.0
//
// A checksum of bytes that come in pieces: 64 bits that tell damage, not forgery. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace coluber {

class Checksum {
 public:
  Checksum();
  ~Checksum();
  Checksum(const Checksum&) = delete;
  Checksum& operator=(const Checksum&) = delete;

  void add(std::span<const std::byte> bytes) noexcept;
  uint64_t value() const noexcept;  // of all bytes so far, however they were cut

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace coluber
