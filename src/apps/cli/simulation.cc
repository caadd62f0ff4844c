// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/simulation.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "engine/load.h"
#include "layers/idle_layers.h"

namespace coluber::cli {
namespace {

constexpr int64_t kSlabBytes = int64_t{1} << 21;
constexpr int64_t kMostSlots = 16384;  // of the prefix cache, as in the engine
constexpr int64_t kStepsAProgress = 256;

}  // namespace

// Addresses with nothing behind them. Counts what would be copied.
class Simulation::Memory : public Device {
 public:
  std::string_view name() const noexcept override { return "simulated"; }
  bool is_host() const noexcept override { return true; }
  void* allocate(int64_t bytes) override { return reserve(bytes); }
  void deallocate(void* memory, int64_t bytes) noexcept override { release(memory, bytes); }
  void copy(void*, const void*, int64_t bytes) override { copied_bytes_ += bytes; }
  void fill(void*, std::byte, int64_t) override {}
  void synchronize() override {}
  int64_t slab_bytes() const noexcept override { return kSlabBytes; }
  void* reserve(int64_t bytes) override {
    void* base =
        ::mmap(nullptr, static_cast<size_t>(bytes), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
      throw make_error(ErrorCode::kOutOfMemory, "cache-sim: cannot reserve {} bytes of addresses", bytes);
    return base;
  }
  void release(void* base, int64_t bytes) noexcept override { ::munmap(base, static_cast<size_t>(bytes)); }
  void map(void*, int64_t) override {}
  void unmap(void*, int64_t) noexcept override {}

  int64_t take_copied_bytes() noexcept { return std::exchange(copied_bytes_, 0); }

 private:
  int64_t copied_bytes_ = 0;
};

// Every beginning of every sequence so far.
class Simulation::Oracle : private PrefixTreeOwner {
 public:
  Oracle() : tree_(options(), *this) {}
  // Tokens of the prompt that nobody said before, and at least its last; then it has been said.
  int64_t ask(const Sequence& sequence) {
    const std::span prompt = std::span(sequence.tokens).first(static_cast<size_t>(sequence.num_prompt_tokens));
    const int64_t common = tree_.match(prompt, sequence.cache_salt, pages_).common;
    tree_.extend(tree_.root(sequence.cache_salt), prompt, std::ssize(prompt), {});
    return std::ssize(prompt) - std::min(common, std::ssize(prompt) - 1);
  }
  void answered(const Sequence& sequence) {
    tree_.extend(tree_.root(sequence.cache_salt), sequence.tokens, sequence.num_tokens(), {});
  }

 private:
  static PrefixTreeOptions options() {
    PrefixTreeOptions options;
    options.has_pages = options.has_states = false;
    options.max_nodes = int64_t{1} << 30;
    return options;
  }
  void retain_page(int32_t) override {}
  void release_page(int32_t) override {}
  void release_slot(int32_t) override {}

  PrefixTree tree_;
  std::vector<int32_t> pages_;
};

void Simulation::keep_oracle() { oracle_ = std::make_unique<Oracle>(); }

bool Simulation::Later::operator()(const std::unique_ptr<Active>& a, const std::unique_ptr<Active>& b) const noexcept {
  if (by_priority && a->request.priority != b->request.priority) return a->request.priority > b->request.priority;
  return a->request.arrival_s > b->request.arrival_s;
}

Simulation::Simulation(const EngineOptions& options, const SimModel& model, SimTrace& trace)
    : model_(model), trace_(trace), config_(make_engine_config(options)), memory_(std::make_unique<Memory>()) {
  config_->cache.mamba_cache_mode = MambaCacheMode::kNone;
  config_->max_model_len = options.max_model_len;
  config_->cache.mamba_block_size = options.max_model_len;
  if (model.state_bytes > 0)
    layers_.push_back(
        std::make_unique<IdleStates>(model.state_bytes, DType::kInt8, model.prefill_checkpoint_alignment));
  if (model.kv_bytes_per_token > 0)
    layers_.push_back(std::make_unique<IdleAttention>(model.kv_bytes_per_token, DType::kInt8));
  for (const auto& layer : layers_) config_->register_layer(*layer);
  if (options.cache_layout == CacheLayout::kShared) unify_cache_pages(*config_, options, config_->cache);
  StateCacheOptions cache;
  cache.num_slots = config_->scheduler.max_num_seqs + kMostSlots;
  cache.memory_bytes = options.kv_cache_memory_bytes;
  cache.parking_bytes = options.parking_memory_bytes > 0 ? options.parking_memory_bytes : cache.memory_bytes;
  cache.preemption = options.preemption;
  cache.shared_pages = options.cache_layout == CacheLayout::kShared;
  cache.tell_other_salts = true;
  cache.policy.mode = options.enable_prefix_caching ? options.mamba_cache_mode : MambaCacheMode::kNone;
  cache.policy.unit = options.block_size;
  cache.policy.block_size = options.mamba_block_size.value_or(config_->cache.checkpoint_block_size);
  cache.policy.match_unit = options.prefix_match_unit;
  cache.policy.retention_interval = options.mamba_retention_interval;
  cache_ = std::make_unique<StateCache>(*config_, *memory_, cache);
  scheduler_ = std::make_unique<Scheduler>(config_->scheduler);
  later_.by_priority = config_->scheduler.by_priority;
  max_active_ = 2 * static_cast<size_t>(config_->scheduler.max_num_seqs);
  result_.memory_bytes = cache.memory_bytes;
}

Simulation::~Simulation() = default;

SimSample Simulation::gauges() const {
  SimSample now;
  const PrefixTree* tree = cache_->tree();
  const auto cached_states = tree != nullptr ? tree->num_slots() * tree->options().slot_bytes : 0;
  const auto cached_pages = tree != nullptr ? tree->num_pages() * tree->options().page_bytes : 0;
  now.running = static_cast<double>(scheduler_->num_running());
  now.waiting = static_cast<double>(scheduler_->num_waiting() + static_cast<int64_t>(arrived_.size()));
  now.cached_states = static_cast<double>(cached_states);
  now.running_states = static_cast<double>(std::max<int64_t>(cache_->recurrent_bytes() - cached_states, 0));
  now.cached_pages = static_cast<double>(cached_pages);
  now.running_pages = static_cast<double>(std::max<int64_t>(cache_->attention_bytes() - cached_pages, 0));
  now.parked = static_cast<double>(cache_->counters().parked_bytes);
  return now;
}

void Simulation::refuse(Active& active) {
  ++result_.refused;
  ++result_.requests;
  if (active.request.conversation >= 0) trace_.answered(active.request.conversation, clock_s_);
}

void Simulation::admit() {
  for (auto arrival = trace_.next_arrival(); arrival && *arrival <= clock_s_; arrival = trace_.next_arrival()) {
    auto active = std::make_unique<Active>();
    active->request = trace_.take();
    const int64_t tokens = std::ssize(active->request.prompt) + std::ssize(active->request.output);
    if (tokens > config_->max_model_len || !cache_->can_ever_hold(tokens)) {
      refuse(*active);
      continue;
    }
    arrived_.push_back(std::move(active));
    std::push_heap(arrived_.begin(), arrived_.end(), later_);
  }
  // The scheduler's list is short: it looks through all of it at every end.
  while (active_.size() < max_active_ && !arrived_.empty()) {
    std::pop_heap(arrived_.begin(), arrived_.end(), later_);
    std::unique_ptr<Active> active = std::move(arrived_.back());
    arrived_.pop_back();
    const int64_t id = next_id_++;
    active->sequence = std::make_unique<Sequence>();
    Sequence& sequence = *active->sequence;
    sequence.tokens = std::move(active->request.prompt);
    sequence.num_prompt_tokens = sequence.num_tokens();
    sequence.request_id = id;
    sequence.cache_salt = active->request.cache_salt;
    scheduler_->add({id, &sequence, active->request.priority, id});
    active_.emplace(id, std::move(active));
  }
}

double Simulation::cost_us(int64_t copied_bytes) const {
  double us = model_.step_us + static_cast<double>(copied_bytes) / (model_.copy_gbps * 1e3);
  for (const PlanRow& row : plan_.rows) {
    const bool decodes = row.num_tokens == 1 && row.read_position > 0;
    us += decodes ? model_.decode_us : model_.prefill_us * static_cast<double>(row.num_tokens);
    const double context = static_cast<double>(row.read_position + row.write_position) / 2.0;
    us += model_.context_us * static_cast<double>(row.num_tokens) * context / 1e3;
  }
  return us;
}

void Simulation::note_start(Active& active) {
  if (active.has_started) return;
  active.has_started = true;
  const PrefixUse& prefix = active.sequence->prefix;
  const int64_t prompt = active.sequence->num_prompt_tokens;
  const int64_t common = std::min(prefix.common_tokens, prompt - 1);
  result_.reusable_tokens += common;
  if (oracle_) result_.oracle_tokens += oracle_->ask(*active.sequence);
  result_.series.add_prompt(clock_s_, prompt, prefix.hit_tokens, common);
}

// A token of an answer is work of its own once; all else is a prompt's, or is done again.
void Simulation::note_work(Active& active, const PlanRow& row) {
  const int64_t known = std::max({row.read_position, active.furthest, active.sequence->num_prompt_tokens});
  result_.prompt_work += row.num_tokens - std::max<int64_t>(row.write_position - known, 0);
  active.furthest = std::max(active.furthest, row.write_position);
  result_.peak_bytes = std::max(result_.peak_bytes, cache_->recurrent_bytes() + cache_->attention_bytes());
}

void Simulation::finish(int64_t id) {
  const auto found = active_.find(id);
  Active& active = *found->second;
  if (oracle_) oracle_->answered(*active.sequence);
  scheduler_->remove(id);
  cache_->finish(*active.sequence);
  ++result_.requests;
  result_.prompt_tokens += active.sequence->num_prompt_tokens;
  result_.output_tokens += static_cast<int64_t>(active.answered);
  result_.whole_s.push_back(clock_s_ - active.request.arrival_s);
  const int64_t conversation = active.request.conversation;
  active_.erase(found);
  if (conversation >= 0) trace_.answered(conversation, clock_s_);
}

void Simulation::advance(size_t row) {
  const int64_t id = plan_ids_[row];
  Active& active = *active_.at(id);
  note_start(active);
  note_work(active, plan_.rows[row]);
  cache_->keep_step_end(*active.sequence);
  if (plan_.rows[row].logits == WantedLogits::kNone) return;
  if (active.answered == 0) {
    const double wait_s = clock_s_ - active.request.arrival_s;
    result_.first_token_s.push_back(wait_s);
    result_.series.add_wait(clock_s_, wait_s);
  }
  active.sequence->tokens.push_back(active.request.output[active.answered++]);
  const bool is_given_up =
      active.request.cancel_after && std::cmp_greater_equal(active.answered, *active.request.cancel_after);
  if (is_given_up) ++result_.cancelled;
  if (is_given_up || active.answered == active.request.output.size()) finish(id);
}

void Simulation::step() {
  scheduler_->schedule(*cache_, plan_, plan_ids_);
  if (plan_.rows.empty()) {
    // Nothing else holds memory here, so whoever is stuck could not even run alone.
    const int64_t id = scheduler_->stuck();
    COLUBER_CHECK(id != 0, "no request can run and none is stuck");
    Active& active = *active_.at(id);
    scheduler_->remove(id);
    cache_->release(*active.sequence);
    refuse(active);
    active_.erase(id);
    return;
  }
  for (const PlanRow& row : plan_.rows) {
    cache_->check_read(row);
    cache_->begin_write(row);
  }
  const double us = cost_us(memory_->take_copied_bytes());
  result_.series.add_gauges(clock_s_, us / 1e6, gauges());
  clock_s_ += us / 1e6;
  result_.busy_s += us / 1e6;
  cache_->set_token_cost_us(us / static_cast<double>(plan_.num_tokens));
  ++result_.steps;
  result_.computed_tokens += plan_.num_tokens;
  for (const PlanRow& row : plan_.rows) cache_->end_write(row);
  for (size_t row = 0; row < plan_.rows.size(); ++row) advance(row);
}

void Simulation::run(const std::function<void(int64_t, int64_t)>& on_progress) {
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t turn = 0;; ++turn) {
    if (turn % kStepsAProgress == 0) on_progress(result_.requests, trace_.num_requests());
    admit();
    if (!scheduler_->empty()) {
      step();
      continue;
    }
    const std::optional<double> next = trace_.next_arrival();
    if (!next) break;
    if (*next > clock_s_) result_.series.add_gauges(clock_s_, *next - clock_s_, gauges());
    clock_s_ = std::max(clock_s_, *next);
  }
  result_.end_s = clock_s_;
  result_.cache = cache_->counters();
  result_.evicted = cache_->tree() != nullptr ? cache_->tree()->num_evicted() : 0;
  result_.wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace coluber::cli
