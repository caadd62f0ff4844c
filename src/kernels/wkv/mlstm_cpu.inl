// SPDX-License-Identifier: Apache-2.0
// First the gates and the normaliser of each row and head, token after token; what is left is the sweep of an outer
// product with one decay a token, whose columns are tasks of their own. With C' the memory before the token,
// q^T C = f' q^T C' + i' (q . k) v.
#include "kernels/wkv/outer_product.inl"

struct MlstmScratch {
  float* r;        // [T, H, K] f' q K^-0.5
  float* k;        // [T, H, K] i' k
  float* keep;     // [T, H] f'
  float* bonus;    // [T, H] i' (q . k) K^-0.5
  float* inverse;  // [T, H] of the divisor
  float* columns;  // of each thread
};

COLUBER_INLINE double mlstm_capped(double x, double cap) { return cap > 0.0 ? cap * std::tanh(x / cap) : x; }

// One token's gates: m becomes m', f' and i' come back.
struct MlstmGates {
  float keep, add;
};
inline MlstmGates mlstm_gates(const MlstmArgs& args, int64_t token, int64_t head, float& m) {
  const int64_t at = token * args.gate_stride + head;
  const double cap = args.soft_cap, log_i = mlstm_capped(args.i[at], cap), gate = mlstm_capped(args.f[at], cap);
  const double log_f = std::min(gate, 0.0) - std::log1p(std::exp(-std::fabs(gate)));
  const double kept = log_f + static_cast<double>(m);
  // Later tokens see the m that is stored, so that a cut changes nothing.
  m = static_cast<float>(std::max(kept, log_i));
  return {static_cast<float>(std::exp(kept - static_cast<double>(m))),
          static_cast<float>(std::exp(log_i - static_cast<double>(m)))};
}

inline void mlstm_token(const MlstmArgs& args, int64_t token, int64_t head, float* n, float& m,
                        const MlstmScratch& scratch) {
  const int64_t keys = args.key_dim, at = token * args.num_heads + head;
  const float* q = args.q + token * args.qkv_stride + head * keys;
  const float* k = args.k + token * args.qkv_stride + head * keys;
  const MlstmGates gates = mlstm_gates(args, token, head, m);
  const Vec keep = set1(gates.keep), add = set1(gates.add);
  const Vec scale = set1(1.0f / std::sqrt(static_cast<float>(keys)));
  Vec norm = zero(), bonus = zero();
  for (int64_t i = 0; i < keys; i += kLanes) {
    const int lanes = static_cast<int>(std::min<int64_t>(kLanes, keys - i));
    const Vec query = load_n(q + i, lanes) * scale, key = load_n(k + i, lanes) * add;
    const Vec sum = fma(keep, load_n(n + i, lanes), key);
    store_n(n + i, sum, lanes);
    norm = fma(query, sum, norm);
    bonus = fma(query, key, bonus);
    store_n(scratch.r + at * keys + i, query * keep, lanes);
    store_n(scratch.k + at * keys + i, key, lanes);
  }
  scratch.keep[at] = gates.keep;
  scratch.bonus[at] = reduce_add(bonus);
  scratch.inverse[at] = 1.0f / (std::max(std::fabs(reduce_add(norm)), std::exp(-m)) + args.eps);
}

inline int64_t mlstm_first(const MlstmArgs& args, int64_t row) {
  return args.query_start_loc == nullptr ? row : args.query_start_loc[row];
}

inline void mlstm_normalisers(const MlstmArgs& args, int64_t row, int64_t head, const MlstmScratch& scratch) {
  const int64_t keys = args.key_dim;
  float* n = static_cast<float*>(args.n.target(row)) + head * keys;
  float m = 0.0f;
  if (args.n.is_fresh(row)) {
    std::memset(n, 0, static_cast<size_t>(keys) * sizeof(float));
  } else {
    std::memmove(n, static_cast<const float*>(args.n.source(row)) + head * keys,
                 static_cast<size_t>(keys) * sizeof(float));
    m = static_cast<const float*>(args.m.source(row))[head];
  }
  const RowParts parts(args.n, args.nm_exports, row, mlstm_first(args, row), mlstm_first(args, row + 1));
  for (const RowPart part : parts) {
    for (int64_t t = part.begin; t < part.end; ++t) mlstm_token(args, t, head, n, m, scratch);
    float* left = static_cast<float*>(args.n.at(part.slot)) + head * keys;
    if (left != n) std::memcpy(left, n, static_cast<size_t>(keys) * sizeof(float));
    static_cast<float*>(args.m.at(part.slot))[head] = m;
  }
}

template <typename S>
inline void mlstm_columns(const MlstmArgs& args, int64_t head, int64_t group, OuterHead& outer,
                          const MlstmScratch& scratch) {
  const int64_t heads = args.num_heads;
  outer.place = head * args.key_dim * args.value_dim;
  outer_group<S>(outer, group, [&](int64_t t) {
    const int64_t at = t * heads + head;
    return OuterToken{scratch.r + at * args.key_dim, scratch.keep + at,
                      scratch.k + at * args.key_dim, args.v + t * args.qkv_stride + head * args.value_dim,
                      args.y + at * args.value_dim,  scratch.bonus[at]};
  });
}

// The columns of a group, divided, or zeros for a row without a slot.
inline void mlstm_divide(const MlstmArgs& args, int64_t row, int64_t head, int64_t group, const float* inverse) {
  const int64_t end = std::min(args.value_dim, (group + 1) * kOuterColumns);
  for (int64_t t = mlstm_first(args, row); t < mlstm_first(args, row + 1); ++t) {
    const int64_t at = t * args.num_heads + head;
    for (int64_t c = group * kOuterColumns; c < end; c += kLanes) {
      const int lanes = static_cast<int>(std::min<int64_t>(kLanes, end - c));
      float* y = args.y + at * args.value_dim + c;
      store_n(y, inverse == nullptr ? zero() : load_n(y, lanes) * set1(inverse[at]), lanes);
    }
  }
}

inline MlstmScratch mlstm_scratch(const MlstmArgs& args, int threads, Workspace& workspace) {
  const int64_t gates = args.tokens * args.num_heads;
  MlstmScratch scratch;
  scratch.r = workspace.take<float>(gates * args.key_dim);
  scratch.k = workspace.take<float>(gates * args.key_dim);
  scratch.keep = workspace.take<float>(gates);
  scratch.bonus = workspace.take<float>(gates);
  scratch.inverse = workspace.take<float>(gates);
  scratch.columns = workspace.take<float>(outer_scratch_floats(args.key_dim) * threads);
  return scratch;
}

inline void mlstm(const MlstmArgs& args, ThreadPool& pool, Workspace& workspace) {
  const WorkspaceScope scope(workspace);
  const MlstmScratch scratch = mlstm_scratch(args, pool.size(), workspace);
  const int64_t heads = args.num_heads, groups = outer_groups(args.value_dim);
  pool.parallel_for(args.rows * heads, 1, [&](int64_t first, int64_t last, int) {
    const SubnormalsAreZero guard;
    for (int64_t task = first; task < last; ++task) {
      if (!args.c.is_null(task / heads)) mlstm_normalisers(args, task / heads, task % heads, scratch);
    }
  });
  pool.parallel_for(args.rows * heads * groups, 1, [&](int64_t first, int64_t last, int thread) {
    const SubnormalsAreZero guard;
    OuterHead outer;
    outer.keys = args.key_dim;
    outer.values = args.value_dim;
    outer.w_step = 0;
    outer.state = args.c;
    outer.exports = args.c_exports;
    outer.scratch = scratch.columns + thread * outer_scratch_floats(args.key_dim);
    for (int64_t task = first; task < last; ++task) {
      const int64_t row = task / (heads * groups), head = task / groups % heads, group = task % groups;
      outer.row = row;
      outer.begin = mlstm_first(args, row);
      outer.end = mlstm_first(args, row + 1);
      const bool null = args.c.is_null(row);
      if (!null) {
        by_state_type(args.c.dtype,
                      [&](auto type) { mlstm_columns<decltype(type)>(args, head, group, outer, scratch); });
      }
      mlstm_divide(args, row, head, group, null ? nullptr : scratch.inverse);
    }
  });
}
