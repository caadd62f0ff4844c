// SPDX-License-Identifier: Apache-2.0
//
// What the engine itself costs, each measure beside the one it is held against, in one run: README.md has the table.
//   engine_bench [all | step | lookup | fork | park | unused]
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "base/thread_time.h"
#include "cache/page_pool.h"
#include "cache/parking.h"
#include "cache/prefix_tree.h"
#include "coluber/engine.h"
#include "coluber/session.h"
#include "costless_model.h"
#include "tensor/device.h"

namespace coluber {
namespace {

using Clock = std::chrono::steady_clock;

double us_of(const std::function<void()>& work) {
  const auto begin = Clock::now();
  work();
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<int64_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

std::vector<int32_t> random_ids(int64_t count, int64_t vocab, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % static_cast<uint64_t>(vocab));
  return ids;
}

SamplingParams greedy(int64_t max_tokens) {
  SamplingParams sampling;
  sampling.temperature = 0.0f;
  sampling.ignore_eos = true;
  sampling.max_tokens = max_tokens;
  return sampling;
}

// Decode steps of so many sequences, with a model that computes nothing; the prefix cache is on.
double step_us(int64_t sequences) {
  EngineOptions options;
  options.num_threads = 1;
  options.max_num_seqs = sequences;
  options.max_num_batched_tokens = std::max<int64_t>(512, sequences);
  options.max_model_len = 8192;
  options.kv_cache_memory_bytes = int64_t{1} << 30;
  const auto engine = make_costless_engine(options, 4096, 64);
  constexpr int64_t kWarm = 300, kMeasured = 1500;
  for (int64_t i = 0; i < sequences; ++i)
    engine->add_request({random_ids(64, 64, static_cast<uint64_t>(i)), greedy(kWarm + kMeasured + sequences + 64)});
  for (int64_t i = 0; i < kWarm; ++i) engine->step();
  std::vector<double> times;
  size_t answers = 0;
  for (int64_t i = 0; i < kMeasured; ++i) times.push_back(us_of([&] { answers += engine->step().size(); }));
  if (answers != static_cast<size_t>(kMeasured * sequences))
    throw Error(ErrorCode::kInternal, "not every sequence got a token in every step");
  return median(std::move(times));
}

void bench_step() {
  for (const int64_t sequences : {1, 16, 64, 256}) {
    const double us = step_us(sequences);
    const double limit = 15.0 + 0.5 * static_cast<double>(sequences);
    fmt::print("a step of {:>3} sequences, no model       {:9.1f} us   {:5.2f} of 15 us + 0.5 us a sequence\n",
               sequences, us, us / limit);
  }
}

class NoMemory : public PrefixTreeOwner {
 public:
  void retain_page(int32_t) override {}
  void release_page(int32_t) override {}
  void release_slot(int32_t) override {}
};

void bench_lookup() {
  constexpr int64_t kTokens = 100000;
  NoMemory owner;
  PrefixTreeOptions options;
  options.page_bytes = 65536;
  options.slot_bytes = 1 << 20;
  PrefixTree tree(options, owner);
  std::vector<int32_t> pages(static_cast<size_t>(kTokens / options.unit));
  for (size_t i = 0; i < pages.size(); ++i) pages[i] = static_cast<int32_t>(i + 1);
  // Neighbours in the tree, so that the path is not all that the caches of the processor hold.
  std::vector<int32_t> tokens;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    tokens = random_ids(kTokens, 50000, seed);
    const int32_t node = tree.extend(tree.root(""), tokens, kTokens, pages);
    PrefixCheckpoint checkpoint;
    checkpoint.position = tree.position_of(node);
    checkpoint.slot = static_cast<int32_t>(seed + 1);
    tree.add_checkpoint(node, tokens, checkpoint);
  }
  tokens.push_back(7);
  std::vector<int32_t> found;
  std::vector<double> times;
  for (int i = 0; i < 101; ++i) {
    found.clear();
    times.push_back(us_of([&] { tree.match(tokens, "", found); }));
  }
  if (found.size() != pages.size()) throw Error(ErrorCode::kInternal, "the look-up did not find its prompt");
  const double us = median(std::move(times));
  fmt::print("look-up of a prompt of 100k tokens        {:9.1f} us   {:5.2f} of 1 ms\n", us, us / 1000.0);
}

void bench_fork() {
  for (const int64_t state_bytes : {int64_t{1} << 16, int64_t{1} << 20, int64_t{24} << 20}) {
    EngineOptions options;
    options.num_threads = 1;
    options.max_model_len = 8192;
    options.kv_cache_memory_bytes = int64_t{2} << 30;
    const auto engine = make_costless_engine(options, state_bytes, 1024);
    const auto session = engine->open_session();
    session->extend(random_ids(4096, 64, 1));
    std::vector<char> from(static_cast<size_t>(state_bytes), 1), to(static_cast<size_t>(state_bytes), 2);
    std::vector<double> forks, copies;
    for (int i = 0; i < 41; ++i) {
      std::unique_ptr<Session> fork;
      forks.push_back(us_of([&] { fork = session->fork(); }));
      copies.push_back(us_of([&] { std::memcpy(to.data(), from.data(), from.size()); }));
      if (to[from.size() / 2] != 1) throw Error(ErrorCode::kInternal, "memcpy copied nothing");
    }
    const double fork_us = median(std::move(forks)), copy_us = median(std::move(copies));
    fmt::print(
        "fork of 4096 tokens, {:>5} kB of states     {:9.1f} us   memcpy of them {:.1f} us, so {:.1f} us beside it\n",
        state_bytes / 1024, fork_us, copy_us, fork_us - copy_us);
  }
  ThreadPool pool(std::min(usable_cores(), 2), false);
  std::vector<double> joins;
  for (int i = 0; i < 1001; ++i) joins.push_back(us_of([&] { pool.parallel_for(2, 1, [](int64_t, int64_t, int) {}); }));
  fmt::print("a fork-join of threads, for comparison    {:9.1f} us\n", median(std::move(joins)));
}

void bench_park() {
  for (const int64_t bytes : {int64_t{1} << 20, int64_t{24} << 20, int64_t{128} << 20}) {
    PagePool slots(cpu_device(), "states", bytes, 4);
    const int32_t slot = *slots.allocate();
    std::memset(slots.page(slot), 1, static_cast<size_t>(bytes));
    std::vector<char> other(static_cast<size_t>(bytes), 2);
    HostBuffers buffers;
    std::vector<double> parks, copies;
    for (int i = 0; i < 21; ++i) {
      parks.push_back(us_of([&] {
        const auto parked = ParkedSequence::park(buffers, cpu_device(), slots, slot, nullptr, {}, StateTag{});
        std::string problem;
        parked->unpark(cpu_device(), slots, slot, nullptr, {}, problem);
      }));
      copies.push_back(us_of([&] {
        std::memcpy(other.data(), slots.page(slot), other.size());
        std::memcpy(slots.page(slot), other.data(), other.size());
      }));
    }
    const double park_us = median(std::move(parks)), copy_us = median(std::move(copies));
    fmt::print("park and return, {:>3} MB                   {:9.1f} us   {:5.2f} of the speed of two memcpy\n",
               bytes >> 20, park_us, copy_us / park_us);
  }
}

// Lengths differ, so that requests come and go one by one: a crowd that ends in one step leaves the pools idle, which
// then give their memory back and fetch it again.
void add_strangers(Engine& engine, uint64_t seed) {
  const int64_t vocab = engine.model_info().vocab_size;
  for (uint64_t i = 0; i < 32; ++i) {
    const auto more = static_cast<int64_t>(i * 7 % 16);
    engine.add_request({random_ids(184 + more, vocab, seed * 1000 + i), greedy(24 + more * 5 % 16)});
  }
}

// The same requests through both, step by step in turns, so that neither has the quieter time. Processor time of this
// thread alone: neighbours on the machine would decide a ratio near one.
double speed_of(Engine& engine, Engine& baseline, uint64_t seed) {
  std::array<Engine*, 2> engines{&engine, &baseline};
  std::array<double, 2> seconds{};
  for (Engine* each : engines) add_strangers(*each, seed);
  for (size_t step = 0; engine.has_unfinished_requests() || baseline.has_unfinished_requests(); ++step) {
    for (const size_t which : {step % 2, 1 - step % 2}) {
      const double begin = thread_cpu_seconds();
      engines[which]->step();
      seconds[which] += thread_cpu_seconds() - begin;
    }
  }
  return seconds[1] / seconds[0];
}

void bench_unused() {
  EngineOptions options;
  options.model = std::string(COLUBER_SOURCE_DIR) + "/models/asp-7m";
  options.num_threads = 1;
  options.max_num_seqs = 16;
  options.kv_cache_memory_bytes = int64_t{256} << 20;
  const auto with = Engine::load(options);
  options.enable_prefix_caching = false;
  const auto without = Engine::load(options);
  // Until the cache is full: memory that is touched for the first time costs more than anything that is done with it.
  uint64_t round = 0;
  while (with->stats().checkpoints_evicted < 64) speed_of(*with, *without, round++);
  std::vector<double> ratios;
  for (const uint64_t warm = round; round < warm + 9; ++round) ratios.push_back(speed_of(*with, *without, round));
  if (with->stats().hit_tokens != 0) throw Error(ErrorCode::kInternal, "prompts that share nothing hit the cache");
  const auto [least, most] = std::ranges::minmax(ratios);
  fmt::print(
      "throughput with a cache that is never hit {:9.3f}      of that without one, {:.3f} to {:.3f} over {} rounds\n",
      median(ratios), least, most, ratios.size());
}

int run(const std::string& which) {
  const std::pair<const char*, void (*)()> benches[] = {{"step", bench_step},
                                                        {"lookup", bench_lookup},
                                                        {"fork", bench_fork},
                                                        {"park", bench_park},
                                                        {"unused", bench_unused}};
  bool known = which == "all";
  for (const auto& [name, bench] : benches) {
    if (which != "all" && which != name) continue;
    bench();
    known = true;
  }
  if (!known) fmt::print(stderr, "engine_bench: expected all, step, lookup, fork, park or unused, found '{}'\n", which);
  return known ? 0 : 2;
}

}  // namespace
}  // namespace coluber

int main(int argc, char** argv) try {
  return coluber::run(argc > 1 ? argv[1] : "all");
} catch (const std::exception& error) {
  fmt::print(stderr, "engine_bench: {}\n", error.what());
  return 1;
}
