// SPDX-License-Identifier: Apache-2.0
// The element-wise parts of a gated MLP and of a layer of experts.

void moe_silu_mul(const float* gate, const float* up, float* out, int64_t count) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(out + i, siluv(load(gate + i)) * load(up + i));
  if (i < count) {
    int n = static_cast<int>(count - i);
    store_n(out + i, siluv(load_n(gate + i, n)) * load_n(up + i, n), n);
  }
}

// One token.
void moe_combine(const CombineExpertsArgs& args, int64_t t) {
  const int32_t* places = args.places + t * args.top_k;
  const float* weights = args.weights + t * args.top_k;
  float* y = args.y + t * args.width;
  int64_t d = 0;
  for (; d + kLanes <= args.width; d += kLanes) {
    Vec sum = zero();
    for (int64_t j = 0; j < args.top_k; ++j)
      sum = fma(set1(weights[j]), load(args.rows + places[j] * args.width + d), sum);
    store(y + d, args.accumulate ? load(y + d) + sum : sum);
  }
  if (d == args.width) return;
  int n = static_cast<int>(args.width - d);
  Vec sum = zero();
  for (int64_t j = 0; j < args.top_k; ++j) {
    sum = fma(set1(weights[j]), load_n(args.rows + places[j] * args.width + d, n), sum);
  }
  store_n(y + d, args.accumulate ? load_n(y + d, n) + sum : sum, n);
}
