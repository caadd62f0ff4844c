// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/dtype.h"
#include "kernels/attention/paged_attention.h"
#include "kernels/attention/store_kv.h"

namespace coluber {
namespace {

// Row `position` of a sequence's keys (plane 0) or values (plane 1); false where its page holds none.
bool read_row(const PagedAttentionArgs& args, int64_t row, int64_t position, int64_t kv_head, int64_t plane,
              std::vector<float>& out) {
  const KvPages& kv = args.kv;
  const int32_t id = args.block_table.at(row, position / kv.block_size);
  if (id <= kNullBlockId) return false;
  const int64_t element =
      plane * kv.plane_elements() + (position % kv.block_size * kv.num_kv_heads + kv_head) * kv.head_dim;
  convert_to_float(kv.page(id) + dtype_bytes(kv.dtype, element), kv.dtype, kv.head_dim, out.data());
  return true;
}

void attend(const PagedAttentionArgs& args, int64_t row, int64_t token, int64_t position, int64_t head) {
  const int64_t head_dim = args.kv.head_dim;
  const int64_t kv_head = head / (args.num_heads / args.kv.num_kv_heads);
  const float* q = args.q + token * args.q_stride + head * head_dim;
  float* out = args.out + token * args.out_stride + head * head_dim;
  std::vector<float> x(static_cast<size_t>(head_dim));
  std::vector<double> scores;
  std::vector<int64_t> seen;
  double maximum = -std::numeric_limits<double>::infinity();
  const KeySelection& chosen = args.selection;
  const bool chooses = chosen.block_size > 0 && chosen.lengths[token] > 0;
  const int64_t first = args.window > 0 ? std::max<int64_t>(0, position - args.window + 1) : 0;
  for (int64_t i = first; i < (chooses ? chosen.lengths[token] : position + 1); ++i) {
    const int64_t j = chooses ? chosen.blocks[token * chosen.stride + i / chosen.block_size] * chosen.block_size +
                                    i % chosen.block_size
                              : i;
    if (!read_row(args, row, j, kv_head, 0, x)) continue;
    double score = 0;
    for (int64_t d = 0; d < head_dim; ++d) score += static_cast<double>(q[d]) * x[static_cast<size_t>(d)];
    score *= args.scale;
    const int64_t place = j - (position - args.bias_extent + 1);  // of the bias
    if (args.bias != nullptr && place >= 0)
      score += args.bias[(token * args.num_heads + head) * args.bias_extent + place];
    scores.push_back(score);
    seen.push_back(j);
    maximum = std::max(maximum, scores.back());
  }
  double sum = 0;
  std::vector<double> values(static_cast<size_t>(head_dim), 0.0);
  for (size_t i = 0; i < seen.size(); ++i) {
    const double p = std::exp(scores[i] - maximum);
    sum += p;
    read_row(args, row, seen[i], kv_head, 1, x);
    for (size_t d = 0; d < values.size(); ++d) values[d] += p * x[d];
  }
  for (size_t d = 0; d < values.size(); ++d) out[d] = seen.empty() ? 0.0f : static_cast<float>(values[d] / sum);
}

}  // namespace

void paged_attention_ref(const PagedAttentionArgs& args, ThreadPool&, Workspace&) {
  for (int64_t r = 0; r < args.num_reqs; ++r) {
    const int64_t begin = args.query_start_loc[r], end = args.query_start_loc[r + 1];
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t h = 0; h < args.num_heads; ++h) attend(args, r, t, args.seq_lens[r] - end + t, h);
    }
  }
  const int64_t used = args.num_reqs > 0 ? args.query_start_loc[args.num_reqs] : 0;
  for (int64_t t = used; t < args.num_tokens; ++t) {
    for (int64_t i = 0; i < args.num_heads * args.kv.head_dim; ++i) args.out[t * args.out_stride + i] = 0.0f;
  }
}

void store_kv_ref(const StoreKvArgs& args, ThreadPool&) {
  const KvPages& kv = args.kv;
  for (int64_t t = 0; t < args.num_tokens; ++t) {
    const int64_t slot = args.slot_mapping[t];
    if (slot < 0) continue;
    std::byte* page = kv.page(slot / kv.block_size);
    const int64_t offset = slot % kv.block_size;
    convert_from_float(args.k + t * args.k_stride, kv.row_elements(), kv.dtype,
                       page + dtype_bytes(kv.dtype, offset * kv.row_elements()));
    if (kv.shared_values) continue;
    convert_from_float(args.v + t * args.v_stride, kv.row_elements(), kv.dtype,
                       page + dtype_bytes(kv.dtype, kv.plane_elements() + offset * kv.row_elements()));
  }
}

}  // namespace coluber
