// SPDX-License-Identifier: Apache-2.0
//
// Checksums that a hub states of its files: SHA-256 of large ones, Git's SHA-1 of the others. digest.cc is the only
// file that sees OpenSSL's hashes. One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace coluber::hub {

class Digest {
 public:
  // By the length of `expected_hex`: 64 digits are SHA-256, 40 Git's SHA-1 of a blob of `bytes` bytes.
  Digest(std::string_view expected_hex, int64_t bytes);
  ~Digest();
  Digest(const Digest&) = delete;
  Digest& operator=(const Digest&) = delete;

  static bool knows(std::string_view expected_hex) noexcept;  // 40 or 64 lower-case hexadecimal digits
  void update(std::string_view bytes);
  std::string hex();  // ends the computation

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace coluber::hub
