// SPDX-License-Identifier: Apache-2.0
// The step of one token a row: bound by the bytes of the state, read and written once.
#include "kernels/scan/ssd_step.inl"

inline void ssd_state_update(const SsdArgs& args, ThreadPool& pool, Workspace&) {
  const int64_t heads = args.num_heads;
  pool.parallel_for(args.rows * heads, std::max<int64_t>(1, args.rows * heads / (8 * pool.size())),
                    [&](int64_t first, int64_t last, int) {
                      const SubnormalsAreZero guard;
                      for (int64_t task = first; task < last; ++task) {
                        const int64_t row = task / heads, head = task % heads;
                        if (args.state.is_null(row)) {
                          ssd_zero_rows(args, row, row + 1, head, head + 1);
                        } else {
                          ssd_by_state_type(args.state.dtype, [&](auto type) {
                            ssd_step_token<decltype(type)>(args, row, row, head, true);
                          });
                        }
                      }
                    });
}
