// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstring>
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
  const int64_t at = plane * kv.plane_bytes() + position % kv.block_size * kv.token_bytes() + kv_head * kv.head_bytes();
  read_kv_row(kv, kv.page(id) + at, kv.head_dim, out.data());
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

// A token's rows of all heads.
void write_rows(const KvPages& kv, const float* values, std::byte* to) {
  const float most = largest_code(kv.dtype);
  for (int64_t h = 0; h < kv.num_kv_heads; ++h, values += kv.head_dim, to += kv.head_bytes()) {
    if (!has_row_scale(kv.dtype)) {
      convert_from_float(values, kv.head_dim, kv.dtype, to);
      continue;
    }
    float largest = 0.0f;
    for (int64_t d = 0; d < kv.head_dim && !std::isnan(largest); ++d)
      if (!(std::fabs(values[d]) <= largest)) largest = std::fabs(values[d]);
    const RowScale scale = row_scale(largest, most);
    std::memcpy(to + kv.head_dim, &scale.scale, sizeof(float));
    for (int64_t d = 0; d < kv.head_dim; ++d) {
      const float value = scale.inverse == 0.0f ? 0.0f : values[d];
      if (kv.dtype == DType::kInt8) {
        constexpr float kUnits = 12582912.0f;  // floats of this size end at the units
        const float code = std::clamp(std::fma(value, scale.inverse, kUnits) - kUnits, -most, most);
        to[d] = static_cast<std::byte>(static_cast<int8_t>(code));
      } else {
        to[d] = static_cast<std::byte>(float_to_float8_e4m3(std::clamp(value * scale.inverse, -most, most)));
      }
    }
  }
}

}  // namespace

void read_kv_row(const KvPages& kv, const std::byte* row, int64_t count, float* out) {
  convert_to_float(row, kv.dtype, count, out);
  if (!has_row_scale(kv.dtype)) return;
  float scale;
  std::memcpy(&scale, row + kv.head_dim, sizeof(scale));
  for (int64_t i = 0; i < count; ++i) out[i] *= scale;
}

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
    write_rows(kv, args.k + t * args.k_stride, page + offset * kv.token_bytes());
    if (kv.shared_values) continue;
    write_rows(kv, args.v + t * args.v_stride, page + kv.plane_bytes() + offset * kv.token_bytes());
  }
}

}  // namespace coluber
