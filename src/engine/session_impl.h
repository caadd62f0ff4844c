// SPDX-License-Identifier: Apache-2.0
//
// What a session is made of, for requests that go on from one (session_requests.cc). Private to the engine folder.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "cache/session_file.h"
#include "coluber/session.h"
#include "engine/engine_impl.h"

namespace coluber {

inline constexpr int64_t kNoAnswer = -1;

struct Session::Impl {
  explicit Impl(Engine::Impl& engine_impl) : engine(engine_impl) { engine.held.insert(&sequence); }
  ~Impl() {
    engine.held.erase(&sequence);
    engine.cache->release(sequence);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void check_extend(std::span<const int32_t> ids) const;
  void forget();
  // The random stream that the next answer draws from: the session's own goes on, a seed of the caller's begins anew
  // unless it is this very answer that goes on.
  void choose_stream(const SamplingParams& sampling, bool goes_on);
  void run_step(int64_t tokens, WantedLogits wanted, const HiddenSink* sink,
                const std::function<void(const float*, int64_t)>& on_logits);
  void extend(std::span<const int32_t> ids, int64_t chunk, const std::function<void(const float*, int64_t)>& on_logits);
  // Computes what is not yet, steps of at most `step` tokens. The first `told` tokens have been computed before, in
  // another length's way: nobody hears of them again.
  void compute(int64_t step, int64_t told, const std::function<void(const float*, int64_t)>& on_logits);

  void put_pending(std::span<const int32_t> ids);

  // Throws where a request has the session.
  void check_here() const;
  SessionImage image() const;

  Engine::Impl& engine;
  bool is_lent = false;  // to a request
  Sequence sequence;     // tokens beyond the computed ones are pending
  std::vector<float> last_logits;
  HiddenSink hidden_sink;
  StepPlan plan;
  SessionSampler sampler;
  int64_t answer_start = kNoAnswer;  // tokens before the answer whose tokens were the last to come
  int64_t fresh_tokens = 0;          // computed since the last answer
};

}  // namespace coluber
