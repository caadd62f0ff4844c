// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/paged_attention.h"

#include "kernels/attention/store_kv.h"
#include "kernels/cuda_test.h"

namespace coluber {
namespace {

struct Sizes {
  int64_t num_heads, num_kv_heads, head_dim;
  DType dtype = DType::kFloat32;
  bool shared_values = false;
  int64_t window = 0;
};

// The last is a latent of 512 beside a turned part of 64.
const Sizes kSizes[] = {{4, 2, 40},
                        {2, 1, 128, DType::kBFloat16},
                        {2, 2, 256, DType::kFloat16, false, 20},
                        {3, 1, 288, DType::kFloat32, true},
                        {5, 1, 576, DType::kFloat32, true}};

constexpr int64_t kBlock = 16, kColumns = 5, kPages = 12;

// Rows of 70 and 33 tokens that lie in pages that are out of order; the step has their last 50 and 1, and a token that
// is of no row.
struct Step {
  std::vector<int32_t> table{7, 2, 9, 4, 11, 3, 8, 1, 0, 0}, starts{0, 50, 51}, lengths{70, 33};

  std::vector<int64_t> slots() const {
    std::vector<int64_t> slots;
    for (int64_t r : {0, 1})
      for (int64_t p = 0; p < lengths[static_cast<size_t>(r)]; ++p)
        slots.push_back(table[static_cast<size_t>(r * kColumns + p / kBlock)] * kBlock + p % kBlock);
    return slots;
  }
};

class PagedAttentionCuda : public CudaTest {};

TEST_F(PagedAttentionCuda, StoresAndAttendsAsTheReferenceDoes) {
  const Step step;
  const std::vector<int64_t> slots = step.slots();
  const auto keys = static_cast<int64_t>(slots.size());
  const int64_t tokens = step.starts.back() + 1;
  for (const Sizes& s : kSizes) {
    SCOPED_TRACE(::testing::Message() << s.num_heads << " heads of " << s.head_dim);
    const int64_t width = s.num_kv_heads * s.head_dim;
    const std::vector<float> k = random_floats(keys * width, -1, 1, 1), v = random_floats(keys * width, -1, 1, 2);
    const std::vector<float> q = random_floats(tokens * s.num_heads * s.head_dim, -1, 1, 3);
    KvPages pages{nullptr, 0, kBlock, s.num_kv_heads, s.head_dim, s.dtype, s.shared_values};
    pages.page_stride_bytes = (s.shared_values ? 1 : 2) * kBlock * pages.token_bytes() + 64;
    std::vector<std::byte> memory(static_cast<size_t>(kPages * pages.page_stride_bytes), std::byte{0xff});
    std::vector<float> want(q.size(), 77.0f), got = want;
    Uploads uploads(*device_);
    const auto at = [&](std::byte* base) {
      KvPages placed = pages;
      placed.base = base;
      return placed;
    };
    std::byte* on_device = uploads.add(memory);
    ThreadPool pool(1);
    Workspace workspace;
    store_kv_ref({k.data(), width, v.data(), width, keys, slots.data(), at(memory.data())}, pool);
    run(store_kv(), StoreKvArgs{uploads.add(k), width, uploads.add(v), width, keys, uploads.add(slots), at(on_device)});
    std::vector<std::byte> stored(memory.size());
    uploads.fetch(on_device, stored);
    EXPECT_TRUE(stored == memory) << "rows are rounded and placed alike";
    PagedAttentionArgs args;
    args.q = q.data();
    args.out = want.data();
    args.q_stride = args.out_stride = s.num_heads * s.head_dim;
    args.num_tokens = tokens;
    args.num_heads = s.num_heads;
    args.kv = at(memory.data());
    args.block_table = {step.table.data(), 2, kColumns, kColumns};
    args.query_start_loc = step.starts.data();
    args.seq_lens = step.lengths.data();
    args.num_reqs = 2;
    args.scale = 0.2f;
    args.window = s.window;
    paged_attention_ref(args, pool, workspace);
    args.q = uploads.add(q);
    args.out = uploads.add(got);
    args.kv = at(on_device);
    args.block_table.data = uploads.add(step.table);
    args.query_start_loc = uploads.add(step.starts);
    args.seq_lens = uploads.add(step.lengths);
    run(paged_attention(), args);
    uploads.fetch(args.out, got);
    expect_close(got, want, kPagedAttentionTolerance, "out");
  }
}

}  // namespace
}  // namespace coluber
