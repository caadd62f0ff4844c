// SPDX-License-Identifier: Apache-2.0
#include "kernels/moe/experts.h"

#include <cmath>

#include "kernels/cuda_test.h"
#include "kernels/elementwise/scale.h"

namespace coluber {
namespace {

class ExpertsCuda : public CudaTest {
 protected:
  void expect_same_routes(RouterArgs args, const std::vector<float>& logits, const std::vector<float>& bias) {
    const auto count = static_cast<size_t>(args.num_tokens * (args.top_k + args.num_always));
    std::vector<int32_t> ids(count), got_ids(count);
    std::vector<float> weights(count), got_weights(count);
    args.logits = logits.data();
    args.expert_ids = ids.data();
    args.weights = weights.data();
    if (!bias.empty()) args.selection_bias = bias.data();
    ThreadPool pool(1);
    Workspace workspace;
    route_top_k()(args, pool, workspace);
    Uploads uploads(*device_);
    args.logits = uploads.add(logits);
    args.expert_ids = uploads.add(got_ids);
    args.weights = uploads.add(got_weights);
    if (!bias.empty()) args.selection_bias = uploads.add(bias);
    run(route_top_k(), args);
    uploads.fetch(args.expert_ids, got_ids);
    uploads.fetch(args.weights, got_weights);
    EXPECT_EQ(got_ids, ids);
    expect_close(got_weights, weights, kRouterTolerance, "weights");
  }
};

// Multiples of a half, so that many are equal; some are no numbers.
std::vector<float> tied_logits(int64_t count) {
  std::vector<float> logits = random_floats(count, -3, 3, 7);
  for (float& x : logits) x = std::round(x * 2) / 2;
  for (size_t i = 5; i < logits.size(); i += 97) logits[i] = NAN;
  return logits;
}

TEST_F(ExpertsCuda, RoutesAsTheProcessorDoesTiesAndNanToo) {
  for (int64_t experts : {1, 4, 32, 129, 512}) {
    for (int64_t top_k : {int64_t{1}, std::min<int64_t>(10, experts), experts}) {
      for (bool renormalize : {true, false}) {
        SCOPED_TRACE(::testing::Message() << top_k << " of " << experts);
        RouterArgs args{nullptr, 40, experts, top_k, renormalize};
        expect_same_routes(args, tied_logits(40 * experts), {});
      }
    }
  }
}

TEST_F(ExpertsCuda, RoutesByGroupsBiasAndExpertsThatAreAlwaysThere) {
  for (RouterScore score : {RouterScore::kSigmoid, RouterScore::kSoftmax}) {
    for (int64_t always : {0, 2}) {
      RouterArgs args{nullptr, 60, 64, 6, true, nullptr, nullptr, score};
      args.num_groups = 8;
      args.topk_groups = 3;
      args.epsilon = 1e-20f;
      args.scale = 2.5f;
      args.num_always = always;
      expect_same_routes(args, random_floats(60 * (64 + always), -3, 3, 8), random_floats(64, -1, 1, 9));
    }
  }
}

TEST_F(ExpertsCuda, OutputsAreTheProcessorsInAnyGrouping) {
  const int64_t width = 70, inner = 36, count = 9;
  ThreadPool pool(1);
  Workspace workspace;
  for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (bool gated : {true, false}) {
      std::vector<Expert> host, device;
      std::vector<ExpertOnDevice> table;
      for (int64_t e = 0; e < count; ++e) {
        const auto matrix = [&](uint64_t seed, int64_t n, int64_t k, PackedMatrix& packed, PackedMatrix& uploaded) {
          const std::vector<float> values = random_activations(dtype, n * k, -0.3f, 0.3f, seed);
          std::vector<uint16_t> narrow;
          for (float value : values) narrow.push_back(float_to_bfloat16(value));
          const void* data = dtype == DType::kFloat32 ? static_cast<const void*>(values.data()) : narrow.data();
          const TensorView view = TensorView::contiguous(data, dtype, Shape{n, k});
          packed = PackedMatrix::pack(view, pool);
          uploaded = PackedMatrix::upload(view, *device_);
        };
        const auto seed = static_cast<uint64_t>(e) * 3;
        Expert a, b;
        matrix(seed, inner, width, a.w1, b.w1);
        if (gated) matrix(seed + 1, inner, width, a.w3, b.w3);
        matrix(seed + 2, width, inner, a.w2, b.w2);
        table.push_back({b.w1.data(), b.w3.data(), b.w2.data(), dtype, dtype, dtype});
        host.push_back(std::move(a));
        device.push_back(std::move(b));
      }
      for (int64_t tokens : {1, 5, 200}) {
        for (int64_t top_k : {1, 3}) {
          SCOPED_TRACE(::testing::Message() << tokens << " tokens, " << top_k << " experts each");
          const std::vector<float> x = random_floats(tokens * width, -2, 2, 50);
          const std::vector<float> weights = random_floats(tokens * top_k, 0, 1, 51);
          std::vector<int32_t> ids;
          for (int64_t i = 0; i < tokens; ++i)  // id `count` is no expert
            for (int64_t j = 0; j < top_k; ++j) ids.push_back(static_cast<int32_t>((i * 7 % 3 + 1) * (j + 1) % 10));
          std::vector<float> want(x.size(), 0.5f), got = want;
          // An activation that rounds alike on both.
          ExpertsArgs args{x.data(), want.data(), tokens, host, ids.data(), weights.data(), top_k, true};
          args.activation = Activation::kRelu;
          run_experts()(args, pool, workspace);
          Uploads uploads(*device_);
          args.x = uploads.add(x);
          args.y = uploads.add(got);
          args.experts = device;
          args.expert_ids = uploads.add(ids);
          args.weights = uploads.add(weights);
          args.on_device = uploads.add(table);
          run(run_experts(), args);
          uploads.fetch(args.y, got);
          expect_close(got, want, {.of_rms = 2e-6}, "y");
        }
      }
    }
  }
}

TEST_F(ExpertsCuda, RowsOfAMatrixComeBackFromTheDevice) {
  const std::vector<float> values = random_floats(5 * 7, -1, 1, 1);
  const PackedMatrix matrix =
      PackedMatrix::upload(TensorView::contiguous(values.data(), DType::kFloat32, Shape{5, 7}), *device_);
  for (int64_t row = 0; row < 5; ++row) {
    std::vector<float> found(7);
    matrix.unpack_row(row, found.data());
    EXPECT_EQ(found, std::vector<float>(values.begin() + row * 7, values.begin() + row * 7 + 7)) << row;
  }
}

TEST_F(ExpertsCuda, ScaleTakesANumberARowWithTheProcessorsBits) {
  const std::vector<float> x = random_floats(50 * 33, -2, 2, 1), factor = random_floats(50, -1, 1, 2);
  std::vector<float> want = random_floats(50 * 33, -2, 2, 3), got = want;
  ThreadPool pool(1);
  ScaleArgs args{x.data(), 33, want.data(), 33, 50, 33};
  args.row_factor = factor.data();
  args.accumulate = true;
  scale()(args, pool);
  Uploads uploads(*device_);
  args.x = uploads.add(x);
  args.y = uploads.add(got);
  args.row_factor = uploads.add(factor);
  run(scale(), args);
  uploads.fetch(args.y, got);
  expect_same_bits(got, want);
}

}  // namespace
}  // namespace coluber
