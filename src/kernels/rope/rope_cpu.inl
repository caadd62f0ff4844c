// SPDX-License-Identifier: Apache-2.0
// Turns the heads of one token by cosines and sines that are already there.

// Half-split: the two halves of the rotated part are streams of their own.
COLUBER_INLINE void rope_turn_halves(float* x, int64_t pairs, const float* cosine, const float* sine) {
  float* y = x + pairs;
  int64_t i = 0;
  for (; i + kLanes <= pairs; i += kLanes) {
    Vec a = load(x + i), b = load(y + i), c = load(cosine + i), s = load(sine + i);
    store(x + i, a * c - b * s);
    store(y + i, b * c + a * s);
  }
  if (i < pairs) {
    int n = static_cast<int>(pairs - i);
    Vec a = load_n(x + i, n), b = load_n(y + i, n), c = load_n(cosine + i, n), s = load_n(sine + i, n);
    store_n(x + i, a * c - b * s, n);
    store_n(y + i, b * c + a * s, n);
  }
}

// Each lane's neighbour of the same pair.
template <int... I>
COLUBER_INLINE Vec rope_swap_pairs(Vec a, std::integer_sequence<int, I...>) {
  return {__builtin_shufflevector(a.v, a.v, (I ^ 1)...)};
}

// Interleaved: `cosine` and `sine` hold each value twice, the sine negative first.
COLUBER_INLINE void rope_turn_pairs(float* x, int64_t rotary_dim, const float* cosine, const float* sine) {
  using Lanes = std::make_integer_sequence<int, kLanes>;
  int64_t i = 0;
  for (; i + kLanes <= rotary_dim; i += kLanes) {
    Vec a = load(x + i);
    store(x + i, a * load(cosine + i) + rope_swap_pairs(a, Lanes{}) * load(sine + i));
  }
  if (i < rotary_dim) {
    int n = static_cast<int>(rotary_dim - i);
    Vec a = load_n(x + i, n);
    store_n(x + i, a * load_n(cosine + i, n) + rope_swap_pairs(a, Lanes{}) * load_n(sine + i, n), n);
  }
}

void rope_turn_heads(const RopeArgs& args, float* heads, int64_t num_heads, const float* cosine, const float* sine) {
  for (int64_t h = 0; h < num_heads; ++h) {
    float* x = heads + h * args.head_dim;
    if (args.interleaved) {
      rope_turn_pairs(x, args.rotary_dim, cosine, sine);
    } else {
      rope_turn_halves(x, args.rotary_dim / 2, cosine, sine);
    }
  }
}
