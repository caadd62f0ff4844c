// SPDX-License-Identifier: Apache-2.0
// One task is one row and some value channels of one head, over all its tokens: some tokens' keys, queries and decays
// are made ready first, then each group of up to four vectors of value channels runs over those tokens.
#include "kernels/simd/vec_recurrent.inl"

// Tokens made ready at once: 16 of 128 key channels, four values each, are 32 KB.
inline constexpr int64_t kDeltaTokens = 16;
inline constexpr int64_t kDeltaBlock = 16;  // value channels that lie side by side in a state

struct DeltaReady {
  float* decay;      // [tokens, kp] exp(g)
  float* k;          // [tokens, kp]
  float* k_decayed;  // [tokens, kp]
  float* q_decayed;  // [tokens, kp]
  float* v;          // [tokens, vp]
  float kq[kDeltaTokens];
  float beta[kDeltaTokens];
  int64_t kp, vp;  // row strides: whole vectors, whole blocks
};

inline int64_t delta_round(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

// Lanes behind n read as zero.
COLUBER_INLINE Vec delta_load(const float* p, int64_t i, int64_t n) {
  return i + kLanes <= n ? load(p + i) : load_n(p + i, static_cast<int>(n - i));
}

inline void delta_decays(const DeltaRuleArgs& args, int64_t token, int64_t head, float* decay) {
  const int64_t n = args.key_dim;
  if (args.gate == nullptr) {
    for (int64_t i = 0; i < n; i += kLanes) store(decay + i, set1(1.0f));
    return;
  }
  const int64_t channel = args.gate_per_channel ? head * n : head;
  const float* gate = args.gate + token * args.gate_stride + channel;
  const float* bias = args.gate_bias == nullptr ? nullptr : args.gate_bias + channel;
  const Vec rate = set1(args.gate_rate[head]);
  const auto decay_of = [&](Vec x) {
    const Vec g =
        args.gate_lower_bound != 0 ? set1(args.gate_lower_bound) * sigmoidv(rate * x) : (zero() - rate) * softplusv(x);
    return expv(g);
  };
  if (!args.gate_per_channel) {
    const Vec value = decay_of(set1(gate[0] + (bias == nullptr ? 0.0f : bias[0])));
    for (int64_t i = 0; i < n; i += kLanes) store(decay + i, value);
    return;
  }
  for (int64_t i = 0; i < n; i += kLanes) {
    Vec x = delta_load(gate, i, n);
    if (bias != nullptr) x = x + delta_load(bias, i, n);
    store(decay + i, decay_of(x));
  }
}

// x / sqrt(sum of squares + eps) * scale, zeros behind n.
inline void delta_normed(const float* x, int64_t n, float eps, float scale, float* out) {
  Vec factor = set1(scale);
  if (eps > 0) {
    Vec sum = zero();
    for (int64_t i = 0; i < n; i += kLanes) sum = fma(delta_load(x, i, n), delta_load(x, i, n), sum);
    factor = factor / sqrt(set1(reduce_add(sum) + eps));
  }
  for (int64_t i = 0; i < n; i += kLanes) store(out + i, delta_load(x, i, n) * factor);
}

inline void delta_make_ready(const DeltaRuleArgs& args, int64_t head, int64_t token, int64_t tokens, DeltaReady& r) {
  const int64_t n = args.key_dim, key_head = head / (args.num_v_heads / args.num_k_heads);
  for (int64_t t = 0; t < tokens; ++t) {
    float *decay = r.decay + t * r.kp, *k = r.k + t * r.kp, *q = r.q_decayed + t * r.kp;
    delta_decays(args, token + t, head, decay);
    delta_normed(args.q + (token + t) * args.q_stride + key_head * n, n, args.norm_eps, args.scale, q);
    delta_normed(args.k + (token + t) * args.k_stride + key_head * n, n, args.norm_eps, 1.0f, k);
    Vec kq = zero();
    for (int64_t i = 0; i < n; i += kLanes) {
      const Vec d = load(decay + i);
      kq = fma(load(k + i), load(q + i), kq);
      store(r.k_decayed + t * r.kp + i, load(k + i) * d);
      store(q + i, load(q + i) * d);
    }
    r.kq[t] = reduce_add(kq);
    r.beta[t] = args.beta_scale;
    if (args.beta != nullptr) {
      const Vec logit = set1(args.beta[(token + t) * args.beta_stride + head]);
      store_n(r.beta + t, set1(args.beta_scale) * sigmoidv(logit), 1);
    }
    const float* v = args.v + (token + t) * args.v_stride + head * args.value_dim;
    for (int64_t i = 0; i < args.value_dim; i += kLanes) store(r.v + t * r.vp + i, delta_load(v, i, args.value_dim));
  }
}

// Vector c of a state whose blocks lie one after the other, at key channel 0.
COLUBER_INLINE int64_t delta_vector(int c, int64_t key_dim) {
  return c * kLanes / kDeltaBlock * kDeltaBlock * key_dim + c * kLanes % kDeltaBlock;
}

// C vectors of value channels from `first` on, over the ready tokens; s at their first block.
template <int C>
inline void delta_columns(const DeltaRuleArgs& args, const DeltaReady& r, int64_t head, int64_t token, int64_t tokens,
                          int64_t first, float* s) {
  const int64_t n = args.key_dim;
  for (int64_t t = 0; t < tokens; ++t) {
    const float *kd = r.k_decayed + t * r.kp, *qd = r.q_decayed + t * r.kp;
    const float *k = r.k + t * r.kp, *decay = r.decay + t * r.kp;
    Vec read[C], out[C];
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) read[c] = out[c] = zero();
    for (int64_t i = 0; i < n; ++i) {
      const Vec key = set1(kd[i]), query = set1(qd[i]);
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) {
        const Vec x = load(s + delta_vector(c, n) + i * kDeltaBlock);
        read[c] = fma(key, x, read[c]);
        out[c] = fma(query, x, out[c]);
      }
    }
    const Vec beta = set1(r.beta[t]), kq = set1(r.kq[t]);
    float* y = args.y + (token + t) * args.y_stride + head * args.value_dim + first;
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      read[c] = beta * (load(r.v + t * r.vp + first + c * kLanes) - read[c]);
      const Vec value = fma(read[c], kq, out[c]);
      const int64_t left = args.value_dim - first - c * kLanes;
      if (left >= kLanes) {
        store(y + c * kLanes, value);
      } else if (left > 0) {
        store_n(y + c * kLanes, value, static_cast<int>(left));
      }
    }
    for (int64_t i = 0; i < n; ++i) {
      const Vec key = set1(k[i]), d = set1(decay[i]);
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) {
        float* x = s + delta_vector(c, n) + i * kDeltaBlock;
        store(x, fma(key, read[c], d * load(x)));
      }
    }
  }
}

// A head's state, [Dv/16][Dk][16] with a narrower last block, to float32 blocks of 16 and back; blocks [b0, b1).
template <typename S>
inline void delta_load_state(const DeltaRuleArgs& args, const S* in, int64_t b0, int64_t b1, float* out) {
  const int64_t n = args.key_dim;
  for (int64_t b = b0; b < b1; ++b) {
    const int64_t width = std::min(kDeltaBlock, args.value_dim - b * kDeltaBlock);
    float* block = out + (b - b0) * n * kDeltaBlock;
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t c = 0; c < kDeltaBlock; c += kLanes) {
        const int64_t left = std::min<int64_t>(width - c, kLanes);
        const S* from = in == nullptr ? nullptr : in + b * kDeltaBlock * n + i * width + c;
        Vec x = zero();
        if (from != nullptr && left == kLanes) x = load_state(from);
        if (from != nullptr && left > 0 && left < kLanes) x = load_state_n(from, static_cast<int>(left));
        store(block + i * kDeltaBlock + c, x);
      }
    }
  }
}

template <typename S>
inline void delta_store_state(const DeltaRuleArgs& args, const float* in, int64_t b0, int64_t b1, S* out) {
  const int64_t n = args.key_dim;
  for (int64_t b = b0; b < b1; ++b) {
    const int64_t width = std::min(kDeltaBlock, args.value_dim - b * kDeltaBlock);
    const float* block = in + (b - b0) * n * kDeltaBlock;
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t c = 0; c < width; c += kLanes) {
        const int64_t left = std::min<int64_t>(width - c, kLanes);
        store_state_n(out + b * kDeltaBlock * n + i * width + c, load(block + i * kDeltaBlock + c),
                      static_cast<int>(left));
      }
    }
  }
}

struct DeltaTask {
  int64_t row, head, b0, b1;  // blocks of value channels
};

inline void delta_tokens(const DeltaRuleArgs& args, const DeltaTask& task, int64_t begin, int64_t end, DeltaReady& r,
                         float* s) {
  constexpr int64_t kGroup = 4 * kLanes / kDeltaBlock;  // blocks that four vectors cover
  const int64_t block_size = kDeltaBlock * args.key_dim;
  for (int64_t t = begin; t < end; t += kDeltaTokens) {
    const int64_t tokens = std::min(kDeltaTokens, end - t);
    delta_make_ready(args, task.head, t, tokens, r);
    int64_t b = task.b0;
    for (; b + kGroup <= task.b1; b += kGroup) {
      delta_columns<4>(args, r, task.head, t, tokens, b * kDeltaBlock, s + (b - task.b0) * block_size);
    }
    for (; b < task.b1; ++b) {
      delta_columns<kDeltaBlock / kLanes>(args, r, task.head, t, tokens, b * kDeltaBlock,
                                          s + (b - task.b0) * block_size);
    }
  }
}

// `leave(slot)` stores the state of the moment; the last slot is the row's own.
template <typename Leave>
inline void delta_row(const DeltaRuleArgs& args, const DeltaTask& task, int64_t begin, int64_t end, DeltaReady& r,
                      float* s, const Leave& leave) {
  for (const RowPart part : RowParts(args.state, args.exports, task.row, begin, end)) {
    delta_tokens(args, task, part.begin, part.end, r, s);
    leave(args.state.at(part.slot));
  }
}

template <typename S>
inline void delta_run(const DeltaRuleArgs& args, const DeltaTask& task, int64_t begin, int64_t end, DeltaReady& r,
                      float* scratch) {
  const int64_t head_size = args.key_dim * args.value_dim;
  const S* source = static_cast<const S*>(args.state.source(task.row));
  if (source != nullptr) source += task.head * head_size;
  if constexpr (std::is_same_v<S, float>) {
    if (args.value_dim % kDeltaBlock == 0) {  // in place
      float* target = static_cast<float*>(args.state.target(task.row)) + task.head * head_size;
      float* blocks = target + task.b0 * kDeltaBlock * args.key_dim;
      const auto bytes = static_cast<size_t>((task.b1 - task.b0) * kDeltaBlock * args.key_dim) * sizeof(float);
      if (source == nullptr) {
        std::memset(blocks, 0, bytes);
      } else if (source != target) {
        std::memcpy(blocks, source + task.b0 * kDeltaBlock * args.key_dim, bytes);
      }
      return delta_row(args, task, begin, end, r, blocks, [&](void* slot) {
        float* to = static_cast<float*>(slot) + (blocks - static_cast<float*>(args.state.target(task.row)));
        if (to != blocks) std::memcpy(to, blocks, bytes);
      });
    }
  }
  delta_load_state(args, source, task.b0, task.b1, scratch);
  delta_row(args, task, begin, end, r, scratch, [&](void* slot) {
    delta_store_state(args, scratch, task.b0, task.b1, static_cast<S*>(slot) + task.head * head_size);
  });
}

inline void delta_zero_rows(const DeltaRuleArgs& args, const DeltaTask& task, int64_t begin, int64_t end) {
  const int64_t first = task.b0 * kDeltaBlock, last = std::min(task.b1 * kDeltaBlock, args.value_dim);
  for (int64_t t = begin; t < end; ++t) {
    std::fill_n(args.y + t * args.y_stride + task.head * args.value_dim + first, last - first, 0.0f);
  }
}

void delta_rule(const DeltaRuleArgs& args, ThreadPool& pool, Workspace& workspace) {
  WorkspaceScope scope(workspace);
  const int64_t blocks = delta_round(args.value_dim, kDeltaBlock) / kDeltaBlock;
  // Heads are split where they are few: each part makes keys and queries ready anew.
  const int64_t heads = args.rows * args.num_v_heads;
  const int64_t parts = std::clamp<int64_t>(heads > 0 ? pool.size() / heads : 1, 1, blocks);
  const int64_t part = (blocks + parts - 1) / parts;
  const int64_t kp = delta_round(args.key_dim, 16), vp = blocks * kDeltaBlock;
  const int64_t ready_size = kDeltaTokens * (4 * kp + vp), state_size = part * kDeltaBlock * args.key_dim;
  float* memory = workspace.take<float>(pool.size() * (ready_size + state_size));
  pool.parallel_for(heads * parts, 1, [&](int64_t first, int64_t last, int thread) {
    const SubnormalsAreZero guard;
    float* scratch = memory + thread * (ready_size + state_size);
    DeltaReady r;
    r.decay = scratch;
    r.k = r.decay + kDeltaTokens * kp;
    r.k_decayed = r.k + kDeltaTokens * kp;
    r.q_decayed = r.k_decayed + kDeltaTokens * kp;
    r.v = r.q_decayed + kDeltaTokens * kp;
    r.kp = kp;
    r.vp = vp;
    for (int64_t i = first; i < last; ++i) {
      const int64_t row = i / parts / args.num_v_heads, b0 = i % parts * part;
      const DeltaTask task{row, i / parts % args.num_v_heads, b0, std::min(b0 + part, blocks)};
      if (task.b0 >= task.b1) continue;
      const int64_t begin = args.query_start_loc == nullptr ? row : args.query_start_loc[row];
      const int64_t end = args.query_start_loc == nullptr ? row + 1 : args.query_start_loc[row + 1];
      if (args.state.is_null(row)) {
        delta_zero_rows(args, task, begin, end);
      } else if (args.state.dtype == DType::kFloat32) {
        delta_run<float>(args, task, begin, end, r, scratch + ready_size);
      } else if (args.state.dtype == DType::kBFloat16) {
        delta_run<StateBf16>(args, task, begin, end, r, scratch + ready_size);
      } else {
        delta_run<StateF16>(args, task, begin, end, r, scratch + ready_size);
      }
    }
  });
}
