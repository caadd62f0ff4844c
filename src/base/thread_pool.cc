// SPDX-License-Identifier: Apache-2.0
#include "base/thread_pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <fstream>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "base/cpu_features.h"
#include "base/error.h"

namespace coluber {
namespace {

using Clock = std::chrono::steady_clock;

// Loops of one decode step follow each other within a few microseconds; between steps a sampler or a stream writer
// runs.
constexpr std::chrono::microseconds kWorkerSpin{40};
constexpr std::chrono::microseconds kJoinSpin{20};
constexpr int kMaxThreads = 4096;
constexpr int64_t kMaxChunks = INT32_MAX;

void futex_wait(std::atomic<uint32_t>& word, uint32_t expected) {
  ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}

void futex_wake(std::atomic<uint32_t>& word, int count) {
  ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}

// Polls until done(), or give_up(), or the time is over; true where done.
template <typename Done, typename GiveUp>
bool spin_until(std::chrono::microseconds budget, const Done& done, const GiveUp& give_up) {
  if (done()) return true;
  if (budget.count() == 0) return false;
  const Clock::time_point end = Clock::now() + budget;
  while (!give_up() && Clock::now() < end) {
    for (int i = 0; i < 32; ++i) {
      cpu_relax();
      if (done()) return true;
    }
  }
  return false;
}

// The chunks [next, end) of one thread's share that nobody has taken. One word, so that taking is one compare-and-swap.
struct Range {
  uint32_t next, end;
};
uint64_t pack(Range range) { return (static_cast<uint64_t>(range.end) << 32) | range.next; }
Range unpack(uint64_t word) { return {static_cast<uint32_t>(word), static_cast<uint32_t>(word >> 32)}; }

constexpr int kNoCore = -1;

struct alignas(128) Share {
  std::atomic<uint64_t> chunks{0};
  std::atomic<int> core{kNoCore};  // where its owner works now

  // The owner takes from the front and thieves from the back, so that the owner keeps walking through its memory in
  // order.
  bool take(bool owner, uint32_t* chunk) {
    uint64_t seen = chunks.load(std::memory_order_acquire);
    while (true) {
      Range range = unpack(seen);
      if (range.next >= range.end) return false;
      *chunk = owner ? range.next++ : --range.end;
      if (chunks.compare_exchange_weak(seen, pack(range), std::memory_order_acq_rel, std::memory_order_acquire))
        return true;
    }
  }
};

}  // namespace

// How a loop is safe without counting the workers in it: the job's fields are read only by a thread that has just taken
// a chunk, and the loop does not end before every chunk is done. A worker that wakes late, or slept between looking at
// a share and taking from it, either finds the shares empty or takes a chunk of the loop that runs now: both are right.
struct ThreadPool::Impl {
  // Written by the caller while all shares are empty and `remaining` is 0.
  struct Job {
    Function function = nullptr;
    void* context = nullptr;
    int64_t n = 0, grain = 1;
  };

  int size = 1;
  std::chrono::microseconds worker_spin{0}, join_spin{0};
  std::vector<Share> shares;
  std::vector<std::thread> workers;
  alignas(128) Job job;
  alignas(128) std::atomic<int64_t> remaining{0};  // chunks that are not done
  std::atomic<uint32_t> caller_parked{0};          // futex of the join
  alignas(128) std::atomic<uint32_t> epoch{0};     // futex of the workers; changes with every loop
  std::atomic<int> parked{0};
  std::atomic<bool> stop{false};
  std::atomic<int> caller_core{kNoCore};
  alignas(128) std::atomic<bool> busy{false};

  explicit Impl(int num_threads) : size(num_threads), shares(static_cast<size_t>(num_threads)) {
    // Threads that outnumber the cores would spin on the core that the work needs.
    if (size <= usable_cores()) {
      worker_spin = kWorkerSpin;
      join_spin = kJoinSpin;
    }
  }

  // Here and not in the pool's destructor: when one thread cannot be started those before it must still be joined.
  ~Impl() {
    stop.store(true);
    epoch.fetch_add(1);
    futex_wake(epoch, INT_MAX);
    for (std::thread& worker : workers) worker.join();
  }

  void run_chunk(uint32_t chunk, int thread) noexcept {
    const int64_t begin = static_cast<int64_t>(chunk) * job.grain;
    job.function(job.context, begin, job.grain < job.n - begin ? begin + job.grain : job.n, thread);
  }

  void work(int thread) noexcept {
    std::atomic<int>& core = shares[static_cast<size_t>(thread)].core;
    core.store(::sched_getcpu(), std::memory_order_relaxed);
    for (int i = 0; i < size; ++i) {
      const int victim = (thread + i) % size;
      uint32_t chunk = 0;
      while (shares[static_cast<size_t>(victim)].take(i == 0, &chunk)) {
        run_chunk(chunk, thread);
        if (remaining.fetch_sub(1) == 1 && thread != 0) wake_caller();
      }
    }
    core.store(kNoCore, std::memory_order_relaxed);
  }

  void wake_caller() noexcept {
    // May be late and meet the next loop's join, which then looks once more and parks again.
    if (caller_parked.load() != 0 && caller_parked.exchange(0) != 0) futex_wake(caller_parked, 1);
  }

  void join() noexcept {
    const auto done = [this] { return remaining.load(std::memory_order_acquire) == 0; };
    // Polling on the core that a worker needs to finish its chunk would hold up both.
    const auto in_the_way = [this] {
      const int here = ::sched_getcpu();
      return std::any_of(shares.begin() + 1, shares.end(),
                         [here](const Share& share) { return share.core.load(std::memory_order_relaxed) == here; });
    };
    if (spin_until(join_spin, done, in_the_way)) return;
    while (!done()) {
      caller_parked.store(1);
      if (remaining.load() != 0) futex_wait(caller_parked, 1);
    }
    caller_parked.store(0, std::memory_order_relaxed);
  }

  void worker_loop(int thread) noexcept {
    uint32_t seen = 0;
    while (true) {
      const auto called = [this, seen] { return epoch.load(std::memory_order_acquire) != seen; };
      // A wake-up may have put this worker on the caller's core (other cores being busy): 53 us a loop instead of 11.
      const auto in_the_way = [this] { return ::sched_getcpu() == caller_core.load(std::memory_order_relaxed); };
      if (!spin_until(worker_spin, called, in_the_way)) {
        parked.fetch_add(1);
        while (epoch.load() == seen) futex_wait(epoch, seen);
        parked.fetch_sub(1);
      }
      seen = epoch.load(std::memory_order_acquire);
      if (stop.load(std::memory_order_acquire)) return;
      work(thread);
    }
  }

  void publish(const Job& next, int64_t num_chunks) {
    job = next;
    caller_core.store(::sched_getcpu(), std::memory_order_relaxed);
    remaining.store(num_chunks, std::memory_order_relaxed);
    const int64_t base = num_chunks / size, longer = num_chunks % size;
    int64_t begin = 0;
    for (int t = 0; t < size; ++t) {
      const int64_t end = begin + base + (t < longer ? 1 : 0);
      shares[static_cast<size_t>(t)].chunks.store(pack({static_cast<uint32_t>(begin), static_cast<uint32_t>(end)}),
                                                  std::memory_order_release);
      begin = end;
    }
    epoch.fetch_add(1);
    // A worker counts itself in `parked` before it looks at the epoch for the last time, so one of the two sees the
    // other.
    const int sleeping = parked.load();
    if (sleeping > 0) futex_wake(epoch, static_cast<int>(std::min<int64_t>(sleeping, num_chunks - 1)));
  }
};

namespace {

void pin_to_core(std::thread& worker, int index) {
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  const int cores = CPU_COUNT(&allowed);
  int wanted = index % std::max(cores, 1);
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &allowed) || wanted-- > 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    ::pthread_setaffinity_np(worker.native_handle(), sizeof one, &one);
    return;
  }
}

}  // namespace

ThreadPool::ThreadPool(int num_threads, bool pin) {
  if (num_threads < 1 || num_threads > kMaxThreads) {
    throw make_error(ErrorCode::kInvalidArgument, "the number of threads must be from 1 to {}, not {}", kMaxThreads,
                     num_threads);
  }
  impl_ = std::make_unique<Impl>(num_threads);
  impl_->workers.reserve(static_cast<size_t>(num_threads - 1));
  for (int thread = 1; thread < num_threads; ++thread) {
    try {
      impl_->workers.emplace_back([impl = impl_.get(), thread] { impl->worker_loop(thread); });
    } catch (const std::system_error& error) {
      throw make_error(ErrorCode::kResourceExhausted,
                       "thread {} of {} could not be started ({}); use fewer threads (--threads), or raise the limit "
                       "on processes or on memory (ulimit -u, ulimit -v)",
                       thread + 1, num_threads, error.code().message());
    }
    if (pin) pin_to_core(impl_->workers.back(), thread);
  }
}

ThreadPool::~ThreadPool() = default;

int ThreadPool::size() const noexcept { return impl_->size; }

void ThreadPool::run(int64_t n, int64_t grain, Function function, void* context) {
  COLUBER_CHECK(grain >= 1, "a loop's grain is {}", grain);
  const int64_t num_chunks = (n - 1) / grain + 1;
  COLUBER_CHECK(num_chunks <= kMaxChunks, "a loop of {} chunks; raise its grain of {}", num_chunks, grain);
  COLUBER_CHECK(!impl_->busy.exchange(true, std::memory_order_acquire), "a loop inside a loop, or two at once");
  if (impl_->size == 1 || num_chunks == 1) {
    for (int64_t begin = 0; begin < n; begin += grain) {
      function(context, begin, grain < n - begin ? begin + grain : n, 0);
    }
  } else {
    impl_->publish({function, context, n, grain}, num_chunks);
    impl_->work(0);
    impl_->join();
  }
  impl_->busy.store(false, std::memory_order_release);
}

namespace {

// Whole cores that a control group grants, 0 where it sets no limit.
int cores_of_quota(const std::string& quota, const std::string& period) {
  const long long quota_us = std::atoll(quota.c_str()), period_us = std::atoll(period.c_str());
  if (quota_us <= 0 || period_us <= 0) return 0;  // "max" and -1 mean none
  return static_cast<int>(std::clamp<long long>(quota_us / period_us, 1, kMaxThreads));
}

int cgroup_cores() {
  int cores = 0;
  const auto lower = [&cores](int limit) {
    if (limit > 0 && (cores == 0 || limit < cores)) cores = limit;
  };
  std::ifstream groups("/proc/self/cgroup");
  std::string line;
  while (std::getline(groups, line)) {
    if (line.rfind("0::", 0) != 0) continue;
    for (std::string path = line.substr(3);;) {  // every parent's limit holds too
      std::ifstream file("/sys/fs/cgroup" + path + "/cpu.max");
      std::string quota, period;
      if (file >> quota >> period) lower(cores_of_quota(quota, period));
      const size_t slash = path.rfind('/');
      if (path.empty() || slash == std::string::npos) break;
      path.resize(slash);
    }
  }
  std::string quota, period;
  std::ifstream("/sys/fs/cgroup/cpu/cpu.cfs_quota_us") >> quota;
  std::ifstream("/sys/fs/cgroup/cpu/cpu.cfs_period_us") >> period;
  lower(cores_of_quota(quota, period));
  return cores;
}

}  // namespace

int usable_cores() {
  static const int cores = [] {
    cpu_set_t allowed;
    int count = ::sched_getaffinity(0, sizeof allowed, &allowed) == 0
                    ? CPU_COUNT(&allowed)
                    : static_cast<int>(std::thread::hardware_concurrency());
    if (const int limit = cgroup_cores(); limit > 0) count = std::min(count, limit);
    return std::max(count, 1);
  }();
  return cores;
}

}  // namespace coluber
