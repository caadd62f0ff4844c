// SPDX-License-Identifier: Apache-2.0
//
// A few threads for what must not hold up the thread of the connections: reading JSON, templates, tokenizers, and
// waiting for the engine's lock. Work is done in the order in which it came, urgent work first. Thread-safe.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace coluber::server {

class WorkQueue {
 public:
  explicit WorkQueue(int num_threads);
  ~WorkQueue();  // as `stop`
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  void push(std::function<void()> work);
  void push_urgent(std::function<void()> work);
  void stop();  // ends after the work that has begun; the rest is dropped

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace coluber::server
