// SPDX-License-Identifier: Apache-2.0
#include "kernels/linear/decay_gate.h"
#include "kernels/linear/gated_linear_attention.h"
#include "kernels/linear/silu.h"
#include "kernels/prefill_cuda_test.h"

namespace coluber {
namespace {

enum class Decay { kConstant, kToken, kChannel };

struct Problem {
  Decay decay;
  int64_t heads, group, key_dim, value_dim;
  DType state = DType::kFloat32;
  int64_t kv_heads() const { return heads / group; }
  int64_t width() const { return heads * value_dim; }
};

const Problem kProblems[] = {
    {Decay::kConstant, 4, 2, 16, 40},  {Decay::kConstant, 2, 1, 70, 7, DType::kFloat16},
    {Decay::kToken, 4, 4, 33, 128},    {Decay::kChannel, 4, 2, 37, 50, DType::kBFloat16},
    {Decay::kChannel, 2, 1, 128, 64},  {Decay::kChannel, 1, 1, 200, 9},
    {Decay::kConstant, 1, 1, 1024, 3},
};

struct Inputs {
  std::vector<float> q, k, v, slopes, log_decay, decay;
  Inputs(const Problem& p, int64_t tokens)
      : q(random_floats(tokens * p.heads * p.key_dim, -1, 1, 1)),
        k(random_floats(tokens * p.kv_heads() * p.key_dim, -1, 1, 2)),
        v(random_floats(tokens * p.kv_heads() * p.value_dim, -1, 1, 3)),
        slopes(random_floats(p.heads, 0, 1, 4)),
        log_decay(random_floats(tokens * p.kv_heads(), -2, 0, 5)),
        decay(random_floats(tokens * p.kv_heads() * p.key_dim, 0.3f, 1, 6)) {}
};

// `place` gives an array as the kernel is to read it.
template <typename Place>
GatedLinearAttentionArgs args_of(const Problem& p, const Inputs& in, const SlotRows& rows, Place place) {
  GatedLinearAttentionArgs args;
  args.q = place(in.q);
  args.k = place(in.k);
  args.v = place(in.v);
  if (p.decay == Decay::kConstant) args.slopes = place(in.slopes);
  if (p.decay == Decay::kToken) args.log_decay = place(in.log_decay);
  if (p.decay == Decay::kChannel) args.decay = place(in.decay);
  args.q_head_stride = args.k_head_stride = args.key_dim = p.key_dim;
  args.v_head_stride = args.value_dim = p.value_dim;
  args.q_stride = p.heads * p.key_dim;
  args.k_stride = p.kv_heads() * p.key_dim;
  args.v_stride = p.kv_heads() * p.value_dim;
  args.o_stride = p.width();
  args.group = p.group;
  args.decay_stride = p.kv_heads() * (p.decay == Decay::kChannel ? p.key_dim : 1);
  args.scale = 0.3f;
  args.query_start_loc = place(rows.query_start_loc);
  args.rows = rows.rows();
  args.num_heads = p.heads;
  return args;
}

class GatedLinearAttentionRowsCuda : public CudaTest {
 protected:
  // Against the reference, which keeps float32 between tokens too.
  void expect_like_reference(const Problem& p, const Operation<GatedLinearAttentionFunction>& operation,
                             const SlotRows& rows, const StateExports& exports, const StateExports& device_exports) {
    const Inputs in(p, rows.tokens());
    StatePool states(rows.slots, p.heads * p.key_dim * p.value_dim, p.state);
    fill_states(states, rows, false);
    DeviceStates held(p.state, p.heads * p.key_dim, p.value_dim, rows.slots, states);
    std::vector<float> want(static_cast<size_t>(rows.tokens() * p.width()), 77.0f), got = want;
    GatedLinearAttentionArgs args = args_of(p, in, rows, [](const auto& values) { return values.data(); });
    args.o = want.data();
    args.exports = exports;
    args.state = states.slots(rows.src.data(), rows.dst.data(), rows.has_initial_state.data());
    args.state.by_token = true;
    ThreadPool pool(1);
    Workspace workspace;
    operation.reference().function(args, pool, workspace);
    Uploads uploads(*device_);
    StatesOnDevice memory(*device_, held, 0);
    memory.put();
    args = args_of(p, in, rows, [&](const auto& values) { return uploads.add(values); });
    args.o = uploads.add(got);
    args.exports = device_exports;
    args.state = memory.slots(uploads, rows);
    run(operation, args);
    uploads.fetch(args.o, got);
    held.bytes = memory.get();
    const Tolerance tolerance = with_state_rounding(kGatedLinearAttentionTolerance, p.state);
    expect_close(got, want, tolerance, "o");
    expect_close(held.all(), states.all(), tolerance, "states");
  }
};

TEST_F(GatedLinearAttentionRowsCuda, AgreesWithTheReferenceOnEveryKindOfRowAndDecay) {
  for (const Problem& p : kProblems) {
    SCOPED_TRACE(::testing::Message() << "decay " << static_cast<int>(p.decay) << ", " << p.heads << " heads, "
                                      << p.key_dim << " by " << p.value_dim);
    SlotRows rows = SlotRows::prefill();
    const LeftStates left(rows, 20);
    Uploads uploads(*device_);
    expect_like_reference(p, gated_linear_attention(), rows, left.host(), left.on_device(uploads));
    expect_like_reference(p, gated_linear_attention_update(), SlotRows::decode(), {}, {});
  }
}

TEST_F(GatedLinearAttentionRowsCuda, GatesAndSiluAgreeWithTheReference) {
  const std::vector<float> x = random_floats(3000, -30, 30, 1), lower = random_floats(30, 0, 1, 2);
  ThreadPool pool(1);
  Uploads uploads(*device_);
  std::vector<float> want(x.size()), got(x.size()), want_key(x.size()), got_key(x.size());
  const auto size = static_cast<int64_t>(x.size());
  const float* on_device = uploads.add(x);
  float *a = uploads.add(got), *key = uploads.add(got);
  silu().reference().function({x.data(), want.data(), size}, pool);
  run(silu(), SiluArgs{on_device, a, size});
  uploads.fetch(a, got);
  expect_close(got, want, kSiluTolerance, "silu");
  for (float least : {-std::numeric_limits<float>::infinity(), -0.5f}) {
    log_sigmoid_decay().reference().function({x.data(), want.data(), size, 16.0f, least}, pool);
    run(log_sigmoid_decay(), LogSigmoidDecayArgs{on_device, a, size, 16.0f, least});
    uploads.fetch(a, got);
    expect_close(got, want, kDecayGateTolerance, "log_sigmoid_decay");
  }
  bounded_decay().reference().function({x.data(), lower.data(), want.data(), want_key.data(), 100, 30}, pool);
  run(bounded_decay(), BoundedDecayArgs{on_device, uploads.add(lower), a, key, 100, 30});
  uploads.fetch(a, got);
  uploads.fetch(key, got_key);
  expect_close(got, want, kDecayGateTolerance, "bounded_decay");
  expect_close(got_key, want_key, kDecayGateTolerance, "key of bounded_decay");
}

}  // namespace
}  // namespace coluber
