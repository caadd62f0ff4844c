// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/paged_attention.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/dtype.h"
#include "base/error.h"
#include "kernels/attention/store_kv.h"
#include "kernels/op_test.h"

namespace coluber {
namespace {

struct Sizes {
  int64_t num_heads = 4, num_kv_heads = 2, head_dim = 16, block_size = 16;
  DType dtype = DType::kFloat32;
  int64_t page_padding_bytes = 0;
  int64_t window = 0, bias_extent = 0;
};

// Sequences with random keys and values in shuffled pages; all other memory is NaN.
class Pages {
 public:
  Pages(const Sizes& sizes, std::vector<int64_t> lengths, uint64_t seed = 1) : sizes_(sizes), lengths_(lengths) {
    for (int64_t length : lengths) cols_ = std::max(cols_, (length + sizes.block_size - 1) / sizes.block_size);
    const int64_t rows = static_cast<int64_t>(lengths.size());
    std::vector<int32_t> ids(static_cast<size_t>(rows * cols_));
    std::iota(ids.begin(), ids.end(), 1);
    std::shuffle(ids.begin(), ids.end(), std::mt19937_64(seed));
    table_ = ids;
    const int64_t row_elements = sizes.num_kv_heads * sizes.head_dim;
    const int64_t scale_bytes = has_row_scale(sizes.dtype) ? 2 * sizes.block_size * sizes.num_kv_heads * 4 : 0;
    stride_ = dtype_bytes(sizes.dtype, 2 * sizes.block_size * row_elements) + scale_bytes + sizes.page_padding_bytes;
    memory_.assign(static_cast<size_t>((rows * cols_ + 1) * stride_), std::byte{0xff});
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t length = lengths[static_cast<size_t>(r)];
      // Keys of a sequence depend on the row's number alone, so that batches can be compared.
      keys_.push_back(random_floats(length * row_elements, -1.5f, 1.5f, seed * 1000 + static_cast<uint64_t>(r)));
      values_.push_back(random_floats(length * row_elements, -1.5f, 1.5f, seed * 7000 + static_cast<uint64_t>(r)));
    }
  }

  KvPages view() {
    return {memory_.data(), stride_, sizes_.block_size, sizes_.num_kv_heads, sizes_.head_dim, sizes_.dtype};
  }
  BlockTableView table() const { return {table_.data(), static_cast<int64_t>(lengths_.size()), cols_, cols_}; }
  std::vector<int32_t>& ids() { return table_; }

  // Stores positions [from, to) of row r.
  void store(int64_t r, int64_t from, int64_t to, StoreKvFunction f, ThreadPool& pool) {
    std::vector<int64_t> slots;
    for (int64_t p = from; p < to; ++p) {
      const int64_t id = table_[static_cast<size_t>(r * cols_ + p / sizes_.block_size)];
      slots.push_back(id <= kNullBlockId ? kPadSlotId : id * sizes_.block_size + p % sizes_.block_size);
    }
    const int64_t width = sizes_.num_kv_heads * sizes_.head_dim;
    StoreKvArgs args{keys_[static_cast<size_t>(r)].data() + from * width,
                     width,
                     values_[static_cast<size_t>(r)].data() + from * width,
                     width,
                     to - from,
                     slots.data(),
                     view()};
    f(args, pool);
  }
  void store_all(ThreadPool& pool) {
    for (size_t r = 0; r < lengths_.size(); ++r) store(static_cast<int64_t>(r), 0, lengths_[r], store_kv_ref, pool);
  }
  const std::vector<std::byte>& memory() const { return memory_; }
  int64_t length(size_t r) const { return lengths_[r]; }

 private:
  Sizes sizes_;
  std::vector<int64_t> lengths_;
  int64_t cols_ = 0, stride_ = 0;
  std::vector<int32_t> table_;
  std::vector<std::byte> memory_;
  std::vector<std::vector<float>> keys_, values_;
};

// Depends on a token's queries alone, so that batches can be compared.
std::vector<float> make_bias(const Sizes& sizes, const std::vector<float>& q, int64_t tokens) {
  std::vector<float> bias;
  for (int64_t row = 0; row < tokens * sizes.num_heads; ++row) {
    const size_t at = static_cast<size_t>(row * sizes.head_dim);
    for (int64_t i = 0; i < sizes.bias_extent; ++i)
      bias.push_back(2.0f * std::sin((at < q.size() ? q[at] : 0.0f) * static_cast<float>(i + 1)));
  }
  return bias;
}

// The last query_lens[r] tokens of each row, as one call.
std::vector<float> attend(PagedAttentionFunction f, const Sizes& sizes, Pages& pages,
                          const std::vector<int32_t>& query_lens, const std::vector<int32_t>& seq_lens,
                          const std::vector<float>& q, ThreadPool& pool, int64_t padded_tokens = 0) {
  std::vector<int32_t> starts = {0};
  for (int32_t n : query_lens) starts.push_back(starts.back() + n);
  const int64_t width = sizes.num_heads * sizes.head_dim;
  std::vector<float> out(static_cast<size_t>((starts.back() + padded_tokens) * width), NAN);
  PagedAttentionArgs args;
  args.q = q.data();
  args.q_stride = args.out_stride = width;
  args.out = out.data();
  args.num_tokens = starts.back() + padded_tokens;
  args.num_heads = sizes.num_heads;
  args.kv = pages.view();
  args.block_table = pages.table();
  args.query_start_loc = starts.data();
  args.seq_lens = seq_lens.data();
  args.num_reqs = static_cast<int64_t>(query_lens.size());
  args.scale = 1.0f / std::sqrt(static_cast<float>(sizes.head_dim));
  args.window = sizes.window;
  const std::vector<float> bias = make_bias(sizes, q, args.num_tokens);
  if (sizes.bias_extent > 0) args.bias = bias.data();
  args.bias_extent = sizes.bias_extent;
  check_paged_attention(args);
  Workspace workspace;
  f(args, pool, workspace);
  return out;
}

TEST(PagedAttention, CandidatesAgreeOverShapes) {
  ThreadPool pool(2);
  const Sizes shapes[] = {
      {},
      {.num_heads = 6, .num_kv_heads = 2, .head_dim = 12, .block_size = 5},
      {.num_heads = 8, .num_kv_heads = 8, .head_dim = 64},
      {.num_heads = 1, .num_kv_heads = 1, .head_dim = 7, .page_padding_bytes = 52},
      {.num_heads = 14, .num_kv_heads = 2, .head_dim = 80, .block_size = 32},
      {.num_heads = 40, .num_kv_heads = 1, .head_dim = 128, .block_size = 64},
      {.num_heads = 4, .num_kv_heads = 1, .head_dim = 256, .dtype = DType::kBFloat16},
      {.num_heads = 4, .num_kv_heads = 2, .head_dim = 20, .dtype = DType::kBFloat16, .page_padding_bytes = 6},
      {.num_heads = 3, .num_kv_heads = 3, .head_dim = 33, .dtype = DType::kFloat16},
      {.num_heads = 6, .num_kv_heads = 3, .head_dim = 33, .block_size = 5, .dtype = DType::kInt8},
      {.num_heads = 4, .num_kv_heads = 2, .head_dim = 64, .dtype = DType::kFloat8E4M3},
      {.num_heads = 3, .num_kv_heads = 1, .head_dim = 13, .dtype = DType::kFloat8E4M3, .page_padding_bytes = 3},
      {.window = 1},
      {.num_heads = 6, .num_kv_heads = 2, .head_dim = 12, .window = 24},
      {.num_heads = 4, .num_kv_heads = 1, .head_dim = 16, .bias_extent = 40},
      {.num_heads = 6, .num_kv_heads = 3, .head_dim = 20, .dtype = DType::kBFloat16, .window = 65, .bias_extent = 65},
      {.window = 4000, .bias_extent = 600}};
  for (const Sizes& sizes : shapes) {
    Pages pages(sizes, {1, 70, 33, 520, 64});
    pages.store_all(pool);
    const std::vector<int32_t> query_lens = {1, 1, 33, 9, 17}, seq_lens = {1, 70, 33, 520, 64};
    const std::vector<float> q = random_floats(61 * sizes.num_heads * sizes.head_dim, -2, 2, 3);
    SCOPED_TRACE("head dim " + std::to_string(sizes.head_dim));
    expect_candidates_agree(paged_attention(), kPagedAttentionTolerance, [&](PagedAttentionFunction f) {
      return std::vector<OpOutput>{{"out", attend(f, sizes, pages, query_lens, seq_lens, q, pool)}};
    });
  }
}

TEST(PagedAttention, LargeScoresDoNotOverflow) {
  ThreadPool pool(1);
  const Sizes sizes;
  Pages pages(sizes, {90});
  pages.store_all(pool);
  std::vector<float> q = random_floats(90 * sizes.num_heads * sizes.head_dim, -300, 300, 3);
  // Scores of some hundreds: their rounding is amplified by the exponential.
  expect_candidates_agree(paged_attention(), Tolerance{.absolute = 1e-3}, [&](PagedAttentionFunction f) {
    return std::vector<OpOutput>{{"out", attend(f, sizes, pages, {90}, {90}, q, pool)}};
  });
}

template <typename Check>
void for_each_simd_candidate(Check&& check) {
  for (const auto& candidate : paged_attention().candidates()) {
    if (candidate.isa == Isa::kRef || candidate.isa > active_isa()) continue;
    SCOPED_TRACE(candidate.name);
    check(candidate.function);
  }
}

TEST(PagedAttention, ChunksGiveTheBitsOfOnePass) {
  ThreadPool pool(2);
  const int32_t length = 1100;
  for (const Sizes& sizes :
       {Sizes{.num_heads = 6, .num_kv_heads = 2, .head_dim = 20, .block_size = 7},
        Sizes{.num_heads = 6, .num_kv_heads = 2, .head_dim = 20, .block_size = 7, .window = 70},
        Sizes{.num_heads = 6, .num_kv_heads = 2, .head_dim = 20, .block_size = 7, .window = 530, .bias_extent = 100}}) {
    SCOPED_TRACE("window " + std::to_string(sizes.window));
    const int64_t width = sizes.num_heads * sizes.head_dim;
    const std::vector<float> q = random_floats(length * width, -2, 2, 5);
    for_each_simd_candidate([&](PagedAttentionFunction f) {
      Pages whole(sizes, {length});
      whole.store_all(pool);
      const std::vector<float> want = attend(f, sizes, whole, {length}, {length}, q, pool);
      for (int32_t chunk : {1, 3, 64, 519}) {
        Pages pages(sizes, {length});  // what later chunks will write is still NaN
        for (int32_t begin = 0; begin < length; begin += chunk) {
          const int32_t end = std::min(begin + chunk, length);
          pages.store(0, begin, end, store_kv().selected().function, pool);
          if (chunk == 1 && begin % 97 != 0 && end != length) continue;
          const std::vector<float> part(q.begin() + begin * width, q.begin() + end * width);
          const std::vector<float> got = attend(f, sizes, pages, {end - begin}, {end}, part, pool);
          ASSERT_EQ(0, std::memcmp(got.data(), want.data() + begin * width, got.size() * sizeof(float)))
              << "chunk " << chunk << " at " << begin;
        }
      }
    });
  }
}

TEST(PagedAttention, ThreadsPageSizesAndNeighboursChangeNoBit) {
  ThreadPool one(1), many(5);
  const std::vector<float> q = random_floats(3 * 4 * 16, -2, 2, 6);
  for_each_simd_candidate([&](PagedAttentionFunction f) {
    Sizes sizes;
    Pages pages(sizes, {2000, 40, 700});
    pages.store_all(one);
    const std::vector<float> want = attend(f, sizes, pages, {1, 1, 1}, {2000, 40, 700}, q, one);
    EXPECT_EQ(want, attend(f, sizes, pages, {1, 1, 1}, {2000, 40, 700}, q, many)) << "threads";
    const std::vector<float> alone = attend(f, sizes, pages, {1}, {2000}, q, many);
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), want.begin())) << "neighbours";
    sizes.block_size = 48;
    Pages other(sizes, {2000, 40, 700});
    other.store_all(one);
    EXPECT_EQ(want, attend(f, sizes, other, {1, 1, 1}, {2000, 40, 700}, q, many)) << "page size";
  });
}

TEST(PagedAttention, KeysOutsideTheWindowCountNothing) {
  ThreadPool pool(2);
  const Sizes sizes{.window = 32}, all;
  const int64_t width = sizes.num_heads * sizes.head_dim;
  const std::vector<float> q = random_floats(width, -2, 2, 6);
  Pages pages(sizes, {1300}), tail(sizes, {1300});
  pages.store_all(pool);
  tail.store(0, 1300 - 32, 1300, store_kv_ref, pool);
  // Only the window's own pages hold keys at all in `tail`; 1268 lies in the middle of a page of 16.
  for (int32_t page = 0; page < 1268 / 16; ++page) tail.ids()[static_cast<size_t>(page)] = kNullBlockId;
  tail.store(0, 1264, 1268, store_kv_ref, pool);
  for (const auto& candidate : paged_attention().candidates()) {
    if (candidate.isa > active_isa()) continue;
    const std::vector<float> got = attend(candidate.function, sizes, pages, {1}, {1300}, q, pool);
    EXPECT_NE(got, attend(candidate.function, all, pages, {1}, {1300}, q, pool)) << candidate.name;
    if (candidate.isa != Isa::kRef) continue;  // the tiers load whole blocks of keys
    EXPECT_EQ(got, attend(candidate.function, sizes, tail, {1}, {1300}, q, pool));
  }
}

TEST(PagedAttention, ContextsFoldedInSeveralWavesKeepTheirBits) {
  for (int64_t window : {0, 1500}) {
    ThreadPool pool(3);
    const Sizes sizes{.num_heads = 64, .num_kv_heads = 1, .head_dim = 4, .window = window};
    const int64_t rows = 32, width = sizes.num_heads * sizes.head_dim;
    const std::vector<int32_t> ones(static_cast<size_t>(rows), 1), lengths(static_cast<size_t>(rows), 2600);
    Pages pages(sizes, std::vector<int64_t>(static_cast<size_t>(rows), 2600));
    pages.store_all(pool);
    const std::vector<float> q = random_floats(rows * width, -2, 2, 6);
    for_each_simd_candidate([&](PagedAttentionFunction f) {
      const std::vector<float> all = attend(f, sizes, pages, ones, lengths, q, pool);
      const std::vector<float> first = attend(f, sizes, pages, {1}, {2600}, q, pool);
      EXPECT_TRUE(std::equal(first.begin(), first.end(), all.begin()));
      const std::vector<float> exact = attend(&paged_attention_ref, sizes, pages, {1}, {2600}, q, pool);
      expect_close(first, exact, kPagedAttentionTolerance, "against the reference");
    });
  }
}

TEST(PagedAttention, PaddedTokensAndRowsWithoutKeysGiveZero) {
  ThreadPool pool(2);
  const Sizes sizes;
  const int64_t width = sizes.num_heads * sizes.head_dim;
  const std::vector<float> q = random_floats(8 * width, -2, 2, 6);
  for (const auto& candidate : paged_attention().candidates()) {
    if (candidate.isa > active_isa()) continue;
    SCOPED_TRACE(candidate.name);
    Pages pages(sizes, {20, 3, 1});
    pages.store_all(pool);
    pages.ids()[2 * 2] = kNullBlockId;  // row 2 is padding: its page is the null one
    // Row 1 has no query at all.
    const std::vector<float> out = attend(candidate.function, sizes, pages, {1, 0, 1}, {20, 3, 1}, q, pool, 2);
    for (size_t i = 0; i < out.size(); ++i) {
      if (i < static_cast<size_t>(width)) {
        EXPECT_TRUE(std::isfinite(out[i]) && out[i] != 0.0f) << i;
      } else {
        EXPECT_EQ(out[i], 0.0f) << i;
      }
    }
  }
}

TEST(PagedAttention, TooFewColumnsAreRefused) {
  ThreadPool pool(1);
  const Sizes sizes;
  Pages pages(sizes, {16});
  const std::vector<float> q = random_floats(64, -2, 2, 6);
  EXPECT_THROW(attend(paged_attention().reference().function, sizes, pages, {1}, {17}, q, pool), Error);
}

TEST(PagedAttention, RunsVectorised) { expect_vectorised(paged_attention()); }

TEST(StoreKv, CandidatesWriteTheSameBytesAndNothingElse) {
  ThreadPool pool(2);
  for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kInt8, DType::kFloat8E4M3}) {
    for (int64_t head_dim : {3, 16, 100}) {
      const Sizes sizes{.num_heads = 2, .num_kv_heads = 2, .head_dim = head_dim, .block_size = 4, .dtype = dtype};
      auto run = [&](StoreKvFunction f) {
        Pages pages(sizes, {30});
        pages.ids()[1] = kNullBlockId;  // positions 4 to 7 go nowhere
        pages.store(0, 0, 30, f, pool);
        return pages.memory();
      };
      const std::vector<std::byte> want = run(store_kv_ref);
      const int64_t null_page = dtype_bytes(dtype, 2 * 4 * 2 * head_dim);
      EXPECT_TRUE(
          std::all_of(want.begin(), want.begin() + null_page, [](std::byte b) { return b == std::byte{0xff}; }));
      for (const auto& candidate : store_kv().candidates()) {
        if (candidate.isa > active_isa()) {
          name_unrun_tier("store_kv", candidate.name);
          continue;
        }
        EXPECT_EQ(want, run(candidate.function)) << candidate.name << ", head dim " << head_dim;
      }
    }
  }
}

TEST(StoreKv, RowsOfBytesLoseAtMostHalfAStep) {
  ThreadPool pool(1);
  for (const DType dtype : {DType::kInt8, DType::kFloat8E4M3}) {
    const int64_t heads = 3, head_dim = 40;
    KvPages kv{nullptr, 0, 1, heads, head_dim, dtype, true};
    std::vector<std::byte> memory(static_cast<size_t>(kv.token_bytes() * 2));
    kv.base = memory.data();
    kv.page_stride_bytes = kv.token_bytes();
    std::vector<float> values = random_floats(heads * head_dim, -5.0f, 5.0f, 9);
    std::fill_n(values.begin() + head_dim, head_dim, 0.0f);
    values[static_cast<size_t>(3 * head_dim - 1)] = NAN;
    const int64_t slot = 1;
    store_kv()(StoreKvArgs{values.data(), heads * head_dim, nullptr, 0, 1, &slot, kv}, pool);
    std::vector<float> back(static_cast<size_t>(head_dim));
    for (int64_t h = 0; h < heads; ++h) {
      read_kv_row(kv, kv.page(1) + h * kv.head_bytes(), head_dim, back.data());
      for (int64_t d = 0; d < head_dim; ++d) {
        const float value = values[static_cast<size_t>(h * head_dim + d)], got = back[static_cast<size_t>(d)];
        if (h == 2) {
          EXPECT_TRUE(std::isnan(got)) << "a row with a NaN";
        } else if (dtype == DType::kInt8) {
          EXPECT_NEAR(got, value, 5.0f / 254.0f);
        } else {
          EXPECT_NEAR(got, value, std::fabs(value) / 16.0f + 5.0f / 448.0f / 1024.0f);
        }
      }
    }
  }
}

TEST(StoreKv, RunsVectorised) { expect_vectorised(store_kv()); }

}  // namespace
}  // namespace coluber
