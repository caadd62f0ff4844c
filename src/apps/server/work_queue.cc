// SPDX-License-Identifier: Apache-2.0
#include "apps/server/work_queue.h"

#include "base/log.h"

namespace coluber::server {

WorkQueue::WorkQueue(int num_threads) {
  for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { run(); });
}

WorkQueue::~WorkQueue() { stop(); }

void WorkQueue::push(std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  waiting_.push_back(std::move(work));
  changed_.notify_one();
}

void WorkQueue::push_urgent(std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  waiting_.push_front(std::move(work));
  changed_.notify_one();
}

void WorkQueue::stop() {
  std::deque<std::function<void()>> dropped;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    dropped.swap(waiting_);
    changed_.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void WorkQueue::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
    if (stopping_) return;
    {
      const std::function<void()> work = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      try {
        work();
      } catch (const std::exception& error) {
        log_warn("work for a request failed: {}", error.what());
      }
    }
    lock.lock();
  }
}

}  // namespace coluber::server
