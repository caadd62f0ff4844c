// SPDX-License-Identifier: Apache-2.0
#include "kernels/sampling/largest_logits.h"

#include "kernels/sampling/largest_logits_test.h"
#include "kernels/sampling/sample.h"

namespace coluber {
namespace {

TEST(LargestLogits, AreWhatGreedySamplingChoosesAndRefuses) {
  SamplingParams greedy;
  greedy.temperature = 0.0f;
  ThreadPool pool(1);
  for (const LogitsCase& c : logits_cases()) {
    std::vector<int32_t> ids(static_cast<size_t>(c.rows), -2);
    largest_logits()(LargestLogitsArgs{c.logits.data(), c.rows, c.vocab, ids.data()}, pool);
    SampleScratch scratch;
    for (int64_t row = 0; row < c.rows; ++row) {
      SampleInput input{.params = greedy};
      input.logits = c.logits.data() + row * c.vocab;
      input.vocab = c.vocab;
      const SampleResult want = sample_token(input, scratch);
      EXPECT_EQ(ids[static_cast<size_t>(row)], want.non_finite ? -1 : want.id) << "row " << row << " of " << c.vocab;
    }
  }
}

}  // namespace
}  // namespace coluber
