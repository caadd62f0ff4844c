// SPDX-License-Identifier: Apache-2.0
#include "apps/hub/digest.h"

#include <openssl/evp.h>

#include "base/error.h"

namespace coluber::hub {
namespace {
constexpr size_t kSha256Digits = 64, kSha1Digits = 40;
}

struct Digest::Impl {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~Impl() { EVP_MD_CTX_free(context); }
};

bool Digest::knows(std::string_view expected_hex) noexcept {
  return (expected_hex.size() == kSha256Digits || expected_hex.size() == kSha1Digits) &&
         expected_hex.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

Digest::Digest(std::string_view expected_hex, int64_t bytes) : impl_(std::make_unique<Impl>()) {
  const bool sha256 = expected_hex.size() == kSha256Digits;
  COLUBER_CHECK(impl_->context != nullptr &&
                EVP_DigestInit_ex(impl_->context, sha256 ? EVP_sha256() : EVP_sha1(), nullptr) == 1);
  if (sha256) return;
  std::string header = fmt::format("blob {}", bytes);
  header.push_back('\0');
  update(header);
}

Digest::~Digest() = default;

void Digest::update(std::string_view bytes) {
  COLUBER_CHECK(EVP_DigestUpdate(impl_->context, bytes.data(), bytes.size()) == 1);
}

std::string Digest::hex() {
  unsigned char value[EVP_MAX_MD_SIZE];
  unsigned int length = 0;
  COLUBER_CHECK(EVP_DigestFinal_ex(impl_->context, value, &length) == 1);
  std::string text;
  for (unsigned int i = 0; i < length; ++i) text += fmt::format("{:02x}", value[i]);
  return text;
}

}  // namespace coluber::hub
