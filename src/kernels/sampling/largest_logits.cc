// SPDX-License-Identifier: Apache-2.0
#include "kernels/sampling/largest_logits.h"

#include <limits>

#include "kernels/op_registry.h"

namespace coluber {
namespace {

int32_t largest_of(const float* logits, int64_t vocab) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  float largest = -kInfinity;
  int32_t id = -1;
  for (int64_t i = 0; i < vocab; ++i) {
    if (!(logits[i] < kInfinity)) return -1;
    if (logits[i] > largest) largest = logits[i], id = static_cast<int32_t>(i);
  }
  return id;
}

}  // namespace

void largest_logits_ref(const LargestLogitsArgs& args, ThreadPool&) {
  for (int64_t row = 0; row < args.rows; ++row) args.ids[row] = largest_of(args.logits + row * args.vocab, args.vocab);
}

const Operation<LargestLogitsFunction>& largest_logits() {
  static const Operation<LargestLogitsFunction> operation("largest_logits", {{"ref", Isa::kRef, largest_logits_ref}});
  return operation;
}

namespace {
const RegisterOperations kEntered(largest_logits);
}

}  // namespace coluber
