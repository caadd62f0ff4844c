// SPDX-License-Identifier: Apache-2.0
#include "engine/fingerprint.h"

#include <algorithm>

#include "base/error.h"

namespace coluber {

namespace {

constexpr int64_t kSampleBytes = 4096;

// Folds a hash into the running one.
void fold(Hash128& running, const Hash128& next) {
  const Hash128 both[2] = {running, next};
  running = hash_bytes(both, sizeof(both));
}

}  // namespace

Hash128 model_fingerprint(const std::string& config_json, const WeightSource& source) {
  const WeightSource& weights = source.stored();
  Hash128 hash = hash_text(config_json);
  std::vector<std::string> names = weights.names();
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    const TensorView tensor = weights.peek(name);
    fold(hash, hash_text(fmt::format("{} {} {}", name, dtype_name(tensor.dtype), tensor.shape.to_string())));
    const int64_t bytes = tensor.size_bytes();
    const int64_t sample = std::min(bytes, kSampleBytes);
    fold(hash, hash_bytes(tensor.data, sample));
    fold(hash, hash_bytes(tensor.data + (bytes - sample), sample));
  }
  return hash;
}

}  // namespace coluber
