// SPDX-License-Identifier: Apache-2.0
#include "kernels/wkv/outer_product.inl"

// sum_k r * u * k of one token and head
inline float wkv6_bonus(const Wkv6Args& args, int64_t at, int64_t channel) {
  Vec sum = zero();
  for (int64_t i = 0; i < args.head_dim; i += kLanes) {
    const int lanes = static_cast<int>(std::min<int64_t>(kLanes, args.head_dim - i));
    const Vec rk = load_n(args.r + at + i, lanes) * load_n(args.k + at + i, lanes);
    sum = fma(rk, load_n(args.u + channel + i, lanes), sum);
  }
  return reduce_add(sum);
}

template <typename S>
inline void wkv6_head(const Wkv6Args& args, int64_t head, OuterHead& outer) {
  const int64_t n = args.head_dim, width = args.num_heads * n, channel = head * n;
  outer.place = channel * n;
  for (int64_t group = 0; group < outer_groups(n); ++group) {
    outer_group<S>(outer, group, [&](int64_t t) {
      const int64_t at = t * width + channel;
      return OuterToken{args.r + at, args.w + t * args.w_stride + channel, args.k + at, args.v + at,
                        args.y + at, wkv6_bonus(args, at, channel)};
    });
  }
}

inline void wkv6(const Wkv6Args& args, ThreadPool& pool, Workspace& workspace) {
  const WorkspaceScope scope(workspace);
  const int64_t n = args.head_dim, floats = outer_scratch_floats(n);
  float* memory = workspace.take<float>(floats * pool.size());
  const int64_t tasks = args.rows * args.num_heads;
  const int64_t grain = args.query_start_loc == nullptr ? std::max<int64_t>(1, tasks / (8 * pool.size())) : 1;
  pool.parallel_for(tasks, grain, [&](int64_t first, int64_t last, int thread) {
    const SubnormalsAreZero guard;
    OuterHead outer;
    outer.keys = outer.values = n;
    outer.state = args.state;
    outer.exports = args.exports;
    outer.scratch = memory + thread * floats;
    for (int64_t i = first; i < last; ++i) {
      const int64_t row = i / args.num_heads, head = i % args.num_heads;
      outer.row = row;
      outer.begin = args.query_start_loc == nullptr ? row : args.query_start_loc[row];
      outer.end = args.query_start_loc == nullptr ? row + 1 : args.query_start_loc[row + 1];
      if (!args.state.is_null(row)) {
        by_state_type(args.state.dtype, [&](auto type) { wkv6_head<decltype(type)>(args, head, outer); });
        continue;
      }
      for (int64_t t = outer.begin; t < outer.end; ++t) {
        std::memset(args.y + (t * args.num_heads + head) * n, 0, static_cast<size_t>(n) * sizeof(float));
      }
    }
  });
}
