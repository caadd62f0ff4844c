// SPDX-License-Identifier: Apache-2.0
// Any bytes as a GGUF file: refused with an Error, or read within their bounds, as a model too: its config.json is one,
// and each of its tensors is what its plan says.
#include <sys/mman.h>
#include <unistd.h>

#include <span>
#include <string>

#include "base/error.h"
#include "formats/gguf.h"
#include "formats/hf_config.h"

namespace {

constexpr int64_t kMostBytes = 1 << 20;  // of tensors that are put together

void read_as_model(const std::string& path) {
  const coluber::GgufWeights weights(path);
  coluber::parse_config(weights.config_json(), path);
  int64_t left = kMostBytes;
  for (const std::string& name : weights.names()) {
    const coluber::TensorView peeked = weights.peek(name);
    if ((left -= peeked.size_bytes()) < 0) break;
    const coluber::TensorView view = weights.get(name);
    if (view.shape != peeked.shape || view.dtype != peeked.dtype) __builtin_trap();
    volatile std::byte last{};
    if (view.size_bytes() > 0) last = view.data[view.size_bytes() - 1];
    static_cast<void>(last);
    weights.release(view);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  try {
    for (const auto& tensor : coluber::parse_gguf(bytes, "input").tensors) {
      if (tensor.offset + tensor.size_bytes > static_cast<int64_t>(size)) __builtin_trap();
    }
  } catch (const coluber::Error&) {
    return 0;
  }
  const int file = ::memfd_create("input.gguf", MFD_CLOEXEC);
  if (file < 0) return 0;
  if (::write(file, data, size) == static_cast<ssize_t>(size)) {
    try {
      read_as_model("/proc/self/fd/" + std::to_string(file));
    } catch (const coluber::Error&) {
    }
  }
  ::close(file);
  return 0;
}
