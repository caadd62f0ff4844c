// SPDX-License-Identifier: Apache-2.0
#include "kernels/quant/quantize.h"

#include <string_view>

#include "base/block_type.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "kernels/quant/block_encoders.h"

namespace coluber {
namespace {

struct Encoder {
  std::string_view type;
  BlockEncoder* encode;
};
constexpr Encoder kEncoders[] = {
    {"Q8_0", encode_q8_0}, {"Q4_0", encode_q4_0}, {"Q4_1", encode_q4_1}, {"Q5_0", encode_q5_0},
    {"Q5_1", encode_q5_1}, {"Q4_K", encode_q4_k}, {"Q5_K", encode_q5_k}, {"Q6_K", encode_q6_k},
};

// Blocks of one chunk of work: some microseconds of the cheapest type.
constexpr int64_t kGrain = 64;

const Encoder* encoder_of(DType type) noexcept {
  for (const Encoder& encoder : kEncoders)
    if (encoder.type == dtype_name(type)) return &encoder;
  return nullptr;
}

}  // namespace

bool can_quantize(DType type) noexcept { return encoder_of(type) != nullptr; }

void quantize_blocks(const float* values, int64_t count, DType type, std::byte* blocks, ThreadPool& pool) {
  const Encoder* encoder = encoder_of(type);
  const BlockType* layout = find_block_type(type);
  if (encoder == nullptr || layout == nullptr)
    throw make_error(ErrorCode::kUnsupported, "values cannot be written as {}", dtype_name(type));
  COLUBER_CHECK(count % layout->elements == 0, "{} values are no whole blocks of {}", count, layout->name);
  pool.parallel_for(count / layout->elements, kGrain, [&](int64_t begin, int64_t end, int) {
    encoder->encode(values + begin * layout->elements, end - begin, blocks + begin * layout->bytes);
  });
}

}  // namespace coluber
