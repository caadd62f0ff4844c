// SPDX-License-Identifier: Apache-2.0
// The two variations of paged_attention: queries that choose their keys, and values that are the rows of their keys.
#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "kernels/attention/paged_attention.h"
#include "kernels/attention/store_kv.h"
#include "kernels/op_test.h"

namespace coluber {
namespace {

struct Case {
  int64_t num_heads = 4, num_kv_heads = 2, head_dim = 16, page = 16;
  bool shared_values = false;
  int64_t chosen_block = 4;
  DType dtype = DType::kFloat32;
};

// One sequence of `length` tokens in pages of shuffled order; its last `queries` tokens ask.
class Sequence {
 public:
  Sequence(const Case& c, int64_t length, int64_t queries) : case_(c), length_(length), queries_(queries) {
    const int64_t pages = (length + c.page - 1) / c.page, width = c.num_kv_heads * c.head_dim;
    table_.resize(static_cast<size_t>(pages));
    std::iota(table_.begin(), table_.end(), 1);
    std::shuffle(table_.begin(), table_.end(), std::mt19937_64(5));
    stride_ = dtype_bytes(c.dtype, (c.shared_values ? 1 : 2) * c.page * width);
    memory_.assign(static_cast<size_t>((pages + 1) * stride_), std::byte{0xff});
    keys_ = random_floats(length * width, -1.5f, 1.5f, 1);
    values_ = random_floats(length * width, -1.5f, 1.5f, 2);
    q_ = random_floats(queries * c.num_heads * c.head_dim, -2.0f, 2.0f, 3);
  }

  // Each query sees every third block before its own, and its own as far as it goes.
  void choose_thirds() {
    selection_stride_ = length_ / case_.chosen_block + 1;
    blocks_.assign(static_cast<size_t>(queries_ * selection_stride_), -1);
    for (int64_t t = 0; t < queries_; ++t) {
      const int64_t position = length_ - queries_ + t, own = position / case_.chosen_block;
      int32_t* list = blocks_.data() + t * selection_stride_;
      int32_t count = 0;
      for (int64_t b = 0; b < own; b += 3) list[count++] = static_cast<int32_t>(b);
      list[count] = static_cast<int32_t>(own);
      lengths_.push_back(static_cast<int32_t>(count * case_.chosen_block + position % case_.chosen_block + 1));
    }
  }
  std::vector<int32_t>& blocks() { return blocks_; }
  std::vector<int32_t>& lengths() { return lengths_; }

  std::vector<float> attend(PagedAttentionFunction f, ThreadPool& pool, StoreKvFunction store = store_kv_ref) {
    std::vector<int64_t> slots;
    for (int64_t p = 0; p < length_; ++p)
      slots.push_back(table_[static_cast<size_t>(p / case_.page)] * case_.page + p % case_.page);
    const KvPages pages{memory_.data(), stride_,     case_.page,         case_.num_kv_heads,
                        case_.head_dim, case_.dtype, case_.shared_values};
    const int64_t width = pages.row_elements(), q_width = case_.num_heads * case_.head_dim;
    store({keys_.data(), width, case_.shared_values ? nullptr : values_.data(), width, length_, slots.data(), pages},
          pool);
    const int32_t starts[] = {0, static_cast<int32_t>(queries_)}, length = static_cast<int32_t>(length_);
    std::vector<float> out(q_.size(), NAN);
    PagedAttentionArgs args;
    args.q = q_.data();
    args.out = out.data();
    args.q_stride = args.out_stride = q_width;
    args.num_tokens = queries_;
    args.num_heads = case_.num_heads;
    args.kv = pages;
    args.block_table = {table_.data(), 1, static_cast<int64_t>(table_.size()), static_cast<int64_t>(table_.size())};
    args.query_start_loc = starts;
    args.seq_lens = &length;
    args.num_reqs = 1;
    args.scale = 0.25f;
    if (!lengths_.empty()) args.selection = {case_.chosen_block, blocks_.data(), selection_stride_, lengths_.data()};
    check_paged_attention(args);
    Workspace workspace;
    f(args, pool, workspace);
    return out;
  }

  // The last query of the sequence over a sequence of the keys that it has chosen.
  std::vector<float> last_over_copied_keys(PagedAttentionFunction f, ThreadPool& pool) const {
    const int64_t width = case_.num_kv_heads * case_.head_dim, q_width = case_.num_heads * case_.head_dim;
    Sequence copy(case_, lengths_.back(), 1);
    for (int64_t j = 0; j < lengths_.back(); ++j) {
      const int64_t block = blocks_[static_cast<size_t>((queries_ - 1) * selection_stride_ + j / case_.chosen_block)];
      const int64_t position = block * case_.chosen_block + j % case_.chosen_block;
      std::copy_n(keys_.begin() + position * width, width, copy.keys_.begin() + j * width);
      std::copy_n(values_.begin() + position * width, width, copy.values_.begin() + j * width);
    }
    copy.q_.assign(q_.end() - q_width, q_.end());
    return copy.attend(f, pool);
  }

  std::vector<float> last_query(const std::vector<float>& out) const {
    return {out.end() - case_.num_heads * case_.head_dim, out.end()};
  }

 private:
  Case case_;
  int64_t length_, queries_, stride_ = 0, selection_stride_ = 0;
  std::vector<int32_t> table_, blocks_, lengths_;
  std::vector<std::byte> memory_;
  std::vector<float> keys_, values_, q_;
};

const Case kCases[] = {{},
                       {.num_heads = 6, .num_kv_heads = 1, .head_dim = 33, .shared_values = true},
                       {.num_heads = 64, .num_kv_heads = 1, .head_dim = 40, .page = 7, .shared_values = true},
                       {.num_heads = 8, .head_dim = 20, .page = 5, .chosen_block = 3, .dtype = DType::kBFloat16},
                       {.num_heads = 3, .num_kv_heads = 1, .shared_values = true, .dtype = DType::kFloat16}};

TEST(KeySelection, CandidatesAgreeOverChosenKeys) {
  ThreadPool pool(2);
  for (const Case& c : kCases) {
    SCOPED_TRACE("head dim " + std::to_string(c.head_dim));
    expect_candidates_agree(paged_attention(), kPagedAttentionTolerance, [&](PagedAttentionFunction f) {
      Sequence sequence(c, 2500, 9);
      sequence.choose_thirds();
      return std::vector<OpOutput>{{"out", sequence.attend(f, pool)}};
    });
  }
}

TEST(KeySelection, SharedValuesAgreeOverAllKeys) {
  ThreadPool pool(2);
  for (const Case& c : kCases) {
    expect_candidates_agree(paged_attention(), kPagedAttentionTolerance, [&](PagedAttentionFunction f) {
      Sequence sequence(c, 700, 70);
      return std::vector<OpOutput>{{"out", sequence.attend(f, pool)}};
    });
  }
}

TEST(KeySelection, ChosenKeysGiveTheBitsOfASequenceOfThemAlone) {
  ThreadPool pool(2);
  for (const auto& candidate : paged_attention().candidates()) {
    if (candidate.isa > active_isa()) continue;
    for (const Case& c : kCases) {
      Sequence sequence(c, 2500, 3);
      sequence.choose_thirds();
      const std::vector<float> got = sequence.last_query(sequence.attend(candidate.function, pool));
      EXPECT_EQ(got, sequence.last_over_copied_keys(candidate.function, pool)) << candidate.name;
    }
  }
}

TEST(KeySelection, AQueryThatChoosesNothingSeesAllInTheSameBits) {
  ThreadPool pool(2);
  for (const auto& candidate : paged_attention().candidates()) {
    if (candidate.isa > active_isa()) continue;
    Sequence all(kCases[0], 900, 4), mixed(kCases[0], 900, 4);
    mixed.choose_thirds();
    mixed.lengths().back() = 0;
    EXPECT_EQ(all.last_query(all.attend(candidate.function, pool)),
              mixed.last_query(mixed.attend(candidate.function, pool)))
        << candidate.name;
  }
}

TEST(KeySelection, StoresOfOnePlaneAgree) {
  ThreadPool pool(1);
  for (const auto& candidate : store_kv().candidates()) {
    if (candidate.isa > active_isa()) continue;
    for (const Case& c : kCases) {
      Sequence want(c, 60, 2), got(c, 60, 2);
      EXPECT_EQ(want.attend(paged_attention_ref, pool), got.attend(paged_attention_ref, pool, candidate.function));
    }
  }
}

TEST(KeySelection, KeysBehindTheQueryAreRefused) {
  ThreadPool pool(1);
  Sequence sequence(kCases[0], 64, 2);
  sequence.choose_thirds();
  ++sequence.lengths()[0];
  EXPECT_THROW(sequence.attend(paged_attention_ref, pool), Error);
}

}  // namespace
}  // namespace coluber
