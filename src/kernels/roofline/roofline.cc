// SPDX-License-Identifier: Apache-2.0
#include "kernels/roofline/roofline.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "base/error.h"

namespace coluber {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Runs work(thread) on threads that start together, the caller among them: one thread more than there are cores would
// put two of them on one core, and a measurement is over before the system spreads them. The seconds of the slowest.
// Threads of its own, not a pool's: each must do its own share, however long that takes.
template <typename Work>
double time_together(int threads, const Work& work) {
  std::atomic<int> waiting{0};
  std::vector<double> seconds(static_cast<size_t>(threads));
  const auto run = [&](int thread) {
    waiting.fetch_add(1);
    while (waiting.load(std::memory_order_acquire) < threads) std::this_thread::yield();
    const Clock::time_point begin = Clock::now();
    work(thread);
    seconds[static_cast<size_t>(thread)] = seconds_since(begin);
  };
  std::vector<std::thread> running;
  for (int thread = 1; thread < threads; ++thread) running.emplace_back(run, thread);
  run(0);
  for (std::thread& thread : running) thread.join();
  return *std::max_element(seconds.begin(), seconds.end());
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Pages as a program gets them that asks for nothing special.
class Pages {
 public:
  explicit Pages(int64_t bytes) : bytes_(static_cast<size_t>(bytes)) {
    memory_ = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory_ == MAP_FAILED) {
      throw make_error(ErrorCode::kOutOfMemory,
                       "cannot get {} bytes to measure the read bandwidth; free memory or measure fewer", bytes);
    }
    std::memset(memory_, 0x5a, bytes_);  // else every page would be the same page of zeros, from the cache
  }
  ~Pages() { ::munmap(memory_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  const char* data() const { return static_cast<const char*>(memory_); }

 private:
  void* memory_;
  size_t bytes_;
};

void check_threads(int threads) {
  if (threads < 1)
    throw make_error(ErrorCode::kInvalidArgument, "the machine is measured with at least 1 thread, not {}", threads);
}

std::vector<double> read_rates(int threads, int64_t bytes, int repeats) {
  check_threads(threads);
  const int64_t share = bytes / threads / 512 * 512;
  if (share < (1 << 20) || repeats < 1) {
    throw make_error(
        ErrorCode::kInvalidArgument,
        "the read bandwidth needs at least 1 MiB a thread and one repeat, not {} bytes over {} threads, {} times",
        bytes, threads, repeats);
  }
  const Pages pages(bytes);
  const RooflineLoops loops = roofline_loops()();
  std::atomic<uint64_t> sink{0};
  const auto pass = [&] {
    const double seconds =
        time_together(threads, [&](int thread) { sink ^= loops.read(pages.data() + share * thread, share); });
    return static_cast<double>(share * threads) / seconds / 1e9;
  };
  // The first pass is slow: it writes what the caches still hold of the fresh pages back to memory. It counts like the
  // others, as it does for other programs that measure a machine: shares of one figure are then shares of the other.
  std::vector<double> rates;
  for (int i = 0; i < repeats; ++i) rates.push_back(pass());
  std::sort(rates.begin(), rates.end());
  return rates;
}

}  // namespace

double measure_read_bandwidth(int threads, int64_t bytes, int repeats) {
  return median(read_rates(threads, bytes, repeats));
}

double measure_fma_gflops(int threads) {
  check_threads(threads);
  const RooflineLoops loops = roofline_loops()();
  // Runs of a tenth of a second, whatever the machine: long enough for its clock to settle. Their median, because a
  // neighbour's burst lasts about as long.
  constexpr double kSeconds = 0.1;
  constexpr int kRuns = 5;
  constexpr int64_t kTrial = 1'000'000;
  std::atomic<float> sink{0};
  const auto run = [&](int64_t rounds) {
    return time_together(threads, [&](int thread) { sink = loops.fma(rounds, static_cast<float>(thread)); });
  };
  const double trial = run(kTrial);
  const auto rounds = static_cast<int64_t>(std::max(1.0, kSeconds / std::max(trial, 1e-6)) * kTrial);
  std::vector<double> seconds;
  for (int i = 0; i < kRuns; ++i) seconds.push_back(run(rounds));
  return static_cast<double>(rounds * loops.flops_per_round * threads) / median(seconds) / 1e9;
}

Roofline measure_roofline(int threads, int64_t bytes, int repeats) {
  const std::vector<double> rates = read_rates(threads, bytes, repeats);
  return {threads, rates[rates.size() / 2], rates.front(), rates.back(), measure_fma_gflops(threads)};
}

}  // namespace coluber
