// SPDX-License-Identifier: Apache-2.0
#include "coluber/async_engine.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace coluber {

// One mutex guards the engine; a step holds it. Whoever wants in raises `wanting`, and the loop lets it pass between
// two steps, so that a busy engine never shuts callers out.
struct AsyncEngine::Impl {
  std::unique_ptr<Engine> engine;
  mutable std::mutex mutex;
  mutable std::condition_variable changed;
  mutable int wanting = 0;
  mutable std::mutex wanting_mutex;
  std::unordered_map<RequestId, OnOutput> callbacks;  // of requests that go on
  std::deque<RequestOutput> ended_outside;            // aborts, to be told on the engine's thread
  // Apart from `mutex`, which a busy engine holds nearly always: whoever waits for an end must not wait for a pause
  // too.
  mutable std::mutex live_mutex;
  mutable std::condition_variable ended;
  std::unordered_set<RequestId> live;  // whose last callback has not returned
  bool stopping = false;
  uint64_t visits = 0;         // of whoever may have changed what the engine can do
  bool waits_for_way = false;  // the last step could do nothing, until a visit
  std::thread thread;

  std::unique_lock<std::mutex> enter() const {
    {
      const std::lock_guard guard(wanting_mutex);
      ++wanting;
    }
    std::unique_lock lock(mutex);
    const std::lock_guard guard(wanting_mutex);
    --wanting;
    return lock;
  }
  bool somebody_wants_in() const {
    const std::lock_guard guard(wanting_mutex);
    return wanting > 0;
  }

  void visited() {
    ++visits;
    changed.notify_all();
  }

  void tell(std::unique_lock<std::mutex>& lock, const RequestOutput& output) {
    const auto found = callbacks.find(output.id);
    if (found == callbacks.end()) return;
    const bool is_last = output.request_finished && output.finish_reason != FinishReason::kNone;
    const OnOutput callback = found->second;
    lock.unlock();  // a callback may add and abort
    try {
      if (callback) callback(output);
    } catch (const std::exception& error) {
      log_warn("the callback of request {} threw: {}", output.id, error.what());
    }
    lock.lock();
    if (!is_last) return;
    callbacks.erase(output.id);
    const std::lock_guard guard(live_mutex);
    live.erase(output.id);
    ended.notify_all();
  }

  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return stopping || engine->has_unfinished_requests() || !ended_outside.empty(); });
      if (stopping) return;
      while (!ended_outside.empty()) {
        const RequestOutput output = std::move(ended_outside.front());
        ended_outside.pop_front();
        tell(lock, output);
      }
      const uint64_t seen = visits;
      waits_for_way = false;
      if (engine->has_unfinished_requests()) {
        const std::vector<RequestOutput> outputs = engine->step();
        for (const RequestOutput& output : outputs) tell(lock, output);
      }
      while (somebody_wants_in() && !stopping) {
        lock.unlock();
        std::this_thread::yield();
        lock.lock();
      }
      if (waits_for_way) changed.wait(lock, [&] { return stopping || visits != seen; });
    }
  }
};

AsyncEngine::AsyncEngine(std::unique_ptr<Engine> engine) : impl_(std::make_unique<Impl>()) {
  if (!engine) throw make_error(ErrorCode::kInvalidArgument, "AsyncEngine was given no engine (a null pointer)");
  impl_->engine = std::move(engine);
  impl_->thread = std::thread([impl = impl_.get()] { impl->run(); });
}

AsyncEngine::~AsyncEngine() {
  {
    const auto lock = impl_->enter();
    impl_->stopping = true;
    for (const auto& [id, callback] : impl_->callbacks) impl_->engine->abort(id);
    impl_->engine->on_lack_of_memory(nullptr);
  }
  impl_->changed.notify_all();
  impl_->thread.join();
}

RequestId AsyncEngine::add_request(Request request, OnOutput on_output) {
  const auto lock = impl_->enter();
  const RequestId id = impl_->engine->add_request(std::move(request));
  impl_->callbacks.emplace(id, std::move(on_output));
  {
    const std::lock_guard guard(impl_->live_mutex);
    impl_->live.insert(id);
  }
  impl_->visited();
  return id;
}

void AsyncEngine::abort(RequestId id) {
  const auto lock = impl_->enter();
  if (!impl_->callbacks.contains(id)) return;
  impl_->engine->abort(id);
  RequestOutput output;
  output.id = id;
  output.finish_reason = FinishReason::kAbort;
  impl_->ended_outside.push_back(std::move(output));
  impl_->visited();
}

void AsyncEngine::wait(RequestId id) {
  std::unique_lock lock(impl_->live_mutex);
  impl_->ended.wait(lock, [&] { return !impl_->live.contains(id); });
}

void AsyncEngine::with_engine(const std::function<void(Engine& engine)>& work) {
  const auto lock = impl_->enter();
  work(*impl_->engine);
  impl_->visited();
}

void AsyncEngine::on_lack_of_memory(std::function<bool()> make_way) {
  const auto lock = impl_->enter();
  impl_->engine->on_lack_of_memory(
      [impl = impl_.get(), make_way = std::move(make_way)] { return impl->waits_for_way = make_way && make_way(); });
}

const Engine& AsyncEngine::engine() const noexcept { return *impl_->engine; }

EngineStats AsyncEngine::stats() const {
  const auto lock = impl_->enter();
  return impl_->engine->stats();
}

}  // namespace coluber
