// SPDX-License-Identifier: Apache-2.0

inline void silu(const SiluArgs& args, ThreadPool& pool) {
  pool.parallel_for(args.count, 16384, [&](int64_t first, int64_t last, int) {
    int64_t i = first;
    for (; i + kLanes <= last; i += kLanes) store(args.y + i, siluv(load(args.x + i)));
    if (i < last) {
      const int lanes = static_cast<int>(last - i);
      store_n(args.y + i, siluv(load_n(args.x + i, lanes)), lanes);
    }
  });
}
