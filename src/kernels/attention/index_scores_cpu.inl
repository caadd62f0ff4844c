// SPDX-License-Identifier: Apache-2.0
// Scores of one row's queries for up to kIndexKeys keys that lie in lanes, [D, kIndexKeys]: a vector's lanes are kLanes
// keys, a head is one chain of multiply-adds over D.

// The heads' scores of C vectors of keys for one query.
template <int C>
COLUBER_INLINE void index_score_query(const IndexScoresArgs& args, int64_t token, const float* keys, float* scores) {
  Vec total[C];
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) total[c] = zero();
  for (int64_t h = 0; h < args.num_heads; ++h) {
    const float* q = args.q + (token * args.num_heads + h) * args.key_dim;
    Vec dot[C];
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) dot[c] = zero();
    for (int64_t d = 0; d < args.key_dim; ++d) {
      const Vec x = set1(q[d]);
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) dot[c] = fma(x, load(keys + d * kIndexKeys + c * kLanes), dot[c]);
    }
    const Vec weight = set1(args.weights == nullptr ? 1.0f : args.weights[token * args.num_heads + h]);
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) total[c] = fma(weight, max(zero(), dot[c] * set1(args.scale)), total[c]);
  }
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) store(scores + c * kLanes, total[c]);
}

void index_score_keys(const IndexScoresArgs& args, int64_t row, int64_t first, int64_t count, const float* keys) {
  const int64_t end = args.query_start_loc[row + 1];
  for (int64_t t = args.query_start_loc[row]; t < end; ++t) {
    const int64_t position = args.seq_lens[row] - end + t;
    const int64_t n = std::min(count, (position + 1) / args.block_size - first);
    if (n <= 0) continue;
    float scores[kIndexKeys];
    // All chains at once: each alone would wait for its own multiply-adds.
    if (n > 4 * kLanes || kLanes == 16) {
      index_score_query<kIndexKeys / kLanes>(args, t, keys, scores);
    } else {
      index_score_query<4>(args, t, keys, scores);
    }
    std::memcpy(args.scores + t * args.scores_stride + first, scores, static_cast<size_t>(n) * sizeof(float));
  }
}
