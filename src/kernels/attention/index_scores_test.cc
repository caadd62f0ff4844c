// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/index_scores.h"

#include <algorithm>
#include <numeric>

#include "base/dtype.h"
#include "kernels/op_test.h"

namespace coluber {
namespace {

struct Case {
  int64_t num_heads = 2, key_dim = 16, note = 32, page = 16, block = 4;
  bool weighted = true;
  DType dtype = DType::kFloat32;
};

// Rows of 1, 40 and 700 tokens, of which 1, 9 and 3 ask.
std::vector<float> score(IndexScoresFunction f, const Case& c, ThreadPool& pool, int64_t only_last_of = -1) {
  const std::vector<int32_t> lengths = {1, 40, 700}, queries = {1, 9, 3};
  const int64_t cols = (700 + c.page - 1) / c.page;
  std::vector<int32_t> table(static_cast<size_t>(3 * cols));
  std::iota(table.begin(), table.end(), 1);
  std::shuffle(table.begin(), table.end(), std::mt19937_64(2));
  const std::vector<float> notes = random_floats((3 * cols + 1) * c.page * c.note, -1.0f, 1.0f, 4);
  std::vector<std::byte> memory(static_cast<size_t>(dtype_bytes(c.dtype, static_cast<int64_t>(notes.size()))));
  convert_from_float(notes.data(), static_cast<int64_t>(notes.size()), c.dtype, memory.data());
  std::vector<float> q = random_floats(13 * c.num_heads * c.key_dim, -1.0f, 1.0f, 5);
  std::vector<float> weights = random_floats(13 * c.num_heads, -1.0f, 1.0f, 6);
  std::vector<int32_t> starts = {0, 1, 10, 13}, seq_lens = lengths;
  if (only_last_of >= 0) {
    const auto r = static_cast<size_t>(only_last_of);
    std::vector<int32_t> row(table.begin() + only_last_of * cols, table.begin() + (only_last_of + 1) * cols);
    table = row;
    const int64_t t = starts[r + 1] - 1;
    q = {q.begin() + t * c.num_heads * c.key_dim, q.begin() + (t + 1) * c.num_heads * c.key_dim};
    weights = {weights.begin() + t * c.num_heads, weights.begin() + (t + 1) * c.num_heads};
    starts = {0, 1};
    seq_lens = {lengths[r]};
  }
  std::vector<float> scores(static_cast<size_t>(starts.back()) * 180, NAN);
  IndexScoresArgs args;
  args.q = q.data();
  args.weights = c.weighted ? weights.data() : nullptr;
  args.num_heads = c.num_heads;
  args.key_dim = c.key_dim;
  args.scale = 0.3f;
  args.notes = {memory.data(), dtype_bytes(c.dtype, c.page * c.note), c.page, 1, c.note, c.dtype, true};
  args.block_size = c.block;
  args.block_table = {table.data(), static_cast<int64_t>(seq_lens.size()), cols, cols};
  args.query_start_loc = starts.data();
  args.seq_lens = seq_lens.data();
  args.num_reqs = static_cast<int64_t>(seq_lens.size());
  args.scores = scores.data();
  args.scores_stride = 180;
  Workspace workspace;
  f(args, pool, workspace);
  return scores;
}

const Case kCases[] = {{},
                       {.num_heads = 32, .key_dim = 128, .note = 256, .block = 16},
                       {.num_heads = 3, .key_dim = 7, .note = 7, .page = 5, .block = 6, .weighted = false},
                       {.key_dim = 20, .note = 20, .weighted = false, .dtype = DType::kBFloat16}};

// What is not written stays NaN in every candidate, so this also shows that no block beyond a query's own is scored.
TEST(IndexScores, CandidatesAgree) {
  ThreadPool pool(2);
  for (const Case& c : kCases) {
    expect_candidates_agree(index_scores(), kIndexScoresTolerance, [&](IndexScoresFunction f) {
      return std::vector<OpOutput>{{"scores", score(f, c, pool)}};
    });
  }
}

TEST(IndexScores, AQueryAloneGetsTheBitsThatItGetsInABatch) {
  ThreadPool pool(3);
  for (const auto& candidate : index_scores().candidates()) {
    if (candidate.isa > active_isa()) continue;
    const std::vector<float> all = score(candidate.function, kCases[0], pool);
    const std::vector<float> alone = score(candidate.function, kCases[0], pool, 2);
    for (size_t b = 0; b < 175; ++b) ASSERT_EQ(all[12 * 180 + b], alone[b]) << candidate.name << " block " << b;
  }
}

TEST(IndexScores, RunsVectorised) { expect_vectorised(index_scores()); }

}  // namespace
}  // namespace coluber
