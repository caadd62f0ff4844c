// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <mutex>
#include <utility>

#include "attention/full_attention.h"
#include "attention/gdn_attention.h"
#include "attention/mamba1_attention.h"
#include "attention/mamba2_attention.h"
#include "attention/short_conv_attention.h"
#include "base/error.h"
#include "coluber/backend.h"
#include "coluber/linear_attention.h"

namespace coluber {
namespace {

struct CustomBackends {
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<AttentionBackend>, std::less<>> by_name;
};

CustomBackends& custom_backends() {
  static CustomBackends backends;
  return backends;
}

const AttentionBackend& find_custom_backend(std::string_view name) {
  CustomBackends& backends = custom_backends();
  const std::lock_guard<std::mutex> lock(backends.mutex);
  const auto found = backends.by_name.find(name);
  if (found != backends.by_name.end()) return *found->second;
  std::string known;
  for (const auto& [registered, backend] : backends.by_name) known += (known.empty() ? "'" : ", '") + registered + "'";
  throw make_error(
      ErrorCode::kInvalidConfig,
      "no backend is registered for CUSTOM layers under the name '{}' (registered: {}); call register_custom_backend "
      "before the layer is used",
      name, known.empty() ? "none" : known);
}

}  // namespace

const AttentionBackend& get_mamba_attn_backend(MambaAttentionBackendEnum type, std::string_view custom_name) {
  static const Mamba1AttentionBackend mamba1;
  static const Mamba2AttentionBackend mamba2;
  static const ShortConvAttentionBackend short_conv;
  static const LinearAttentionBackend linear;
  static const GDNAttentionBackend gdn;
  switch (type) {
    case MambaAttentionBackendEnum::kMamba1:
      return mamba1;
    case MambaAttentionBackendEnum::kMamba2:
      return mamba2;
    case MambaAttentionBackendEnum::kShortConv:
      return short_conv;
    case MambaAttentionBackendEnum::kLinear:
      return linear;
    case MambaAttentionBackendEnum::kGdnAttn:
      return gdn;
    case MambaAttentionBackendEnum::kCustom:
      return find_custom_backend(custom_name);
  }
  throw make_error(ErrorCode::kInvalidConfig, "mamba_type {} is no member of MambaAttentionBackendEnum",
                   static_cast<int>(type));
}

const AttentionBackend& get_full_attn_backend() {
  static const FullAttentionBackend full;
  return full;
}

void register_custom_backend(std::string name, std::unique_ptr<AttentionBackend> backend) {
  if (backend == nullptr)
    throw make_error(ErrorCode::kInvalidArgument, "register_custom_backend('{}') was given no backend", name);
  CustomBackends& backends = custom_backends();
  const std::lock_guard<std::mutex> lock(backends.mutex);
  const auto [position, added] = backends.by_name.try_emplace(std::move(name), std::move(backend));
  if (!added)
    throw make_error(ErrorCode::kInvalidArgument,
                     "a backend for CUSTOM layers is registered under the name '{}' already", position->first);
}

}  // namespace coluber
