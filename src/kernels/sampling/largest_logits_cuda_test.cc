// SPDX-License-Identifier: Apache-2.0
#include "kernels/sampling/largest_logits.h"

#include "kernels/cuda_test.h"
#include "kernels/sampling/largest_logits_test.h"

namespace coluber {
namespace {

using LargestLogitsCuda = CudaTest;

TEST_F(LargestLogitsCuda, ChoosesAsTheProcessorDoes) {
  ThreadPool pool(1);
  for (const LogitsCase& c : logits_cases()) {
    for (const int64_t rows : {int64_t{1}, c.rows}) {
      std::vector<int32_t> want(static_cast<size_t>(rows)), got(static_cast<size_t>(rows), -2);
      LargestLogitsArgs args{c.logits.data(), rows, c.vocab, want.data()};
      largest_logits()(args, pool);
      Uploads uploads(*device_);
      args.logits = uploads.add(c.logits);
      args.ids = uploads.add(got);
      run(largest_logits(), args);
      uploads.fetch(args.ids, got);
      EXPECT_EQ(got, want) << rows << " rows of " << c.vocab;
    }
  }
}

}  // namespace
}  // namespace coluber
