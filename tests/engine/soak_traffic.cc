// SPDX-License-Identifier: Apache-2.0
#include "soak_traffic.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <sstream>

namespace coluber::soak {
namespace {

constexpr double kOfOrder = 3e-3, kTimesRounding = 6.0;
constexpr int64_t kMostCuts = 100;

std::filesystem::path files_folder() {
  static const std::filesystem::path kFolder = [] {
    const std::filesystem::path memory = "/dev/shm";  // what is synced there costs nothing
    const std::filesystem::path base =
        std::filesystem::is_directory(memory) ? memory : std::filesystem::temp_directory_path();
    return base / ("coluber_soak_" + std::to_string(::getpid()));
  }();
  return kFolder;
}

bool has_replay(const EngineConfig& config) {
  return std::ranges::any_of(config.layers, [](const AttentionLayerBase* layer) {
    const auto* recurrent = dynamic_cast<const MambaBase*>(layer);
    return recurrent != nullptr && recurrent->supports_replayssm();
  });
}

// Session operations begin with the name of what they do to one.
struct Operation {
  const char* name;
  int64_t weight;
};
constexpr Operation kOperations[] = {{"add", 232},   {"step", 328}, {"cancel", 28}, {"poison", 20},   {"clear", 8},
                                     {"restart", 4}, {"open", 18},  {"extend", 36}, {"cut_short", 9}, {"answer", 18},
                                     {"fork", 9},    {"mark", 18},  {"save", 18},   {"go_back", 18},  {"load", 18},
                                     {"close", 9},   {"unmark", 9}};

// The family's checkpoint with a tokenizer, for texts that end answers.
EngineOptions model_options(const std::string& family) {
  namespace fs = std::filesystem;
  EngineOptions options = families::options_for(family);
  const fs::path folder = files_folder() / ("model_" + family);
  if (!fs::exists(folder)) {
    fs::create_directories(folder);
    for (const auto& file : fs::directory_iterator(options.model))
      fs::create_symlink(file.path(), folder / file.path().filename());
    const fs::path tokenizer = folder / "tokenizer.json";
    if (!fs::exists(tokenizer))
      fs::create_symlink(std::string(COLUBER_SOURCE_DIR) + "/tests/data/tokenizers/bpe_gpt2/tokenizer.json", tokenizer);
  }
  options.model = folder.string();
  return options;
}

std::string name_of(std::optional<DType> dtype) { return dtype ? std::string(dtype_name(*dtype)) : "default"; }

}  // namespace

void Numerics::apply(EngineOptions& options) const {
  options.deterministic = deterministic;
  options.mamba_cache_dtype = conv_states;
  options.mamba_ssm_cache_dtype = states;
  options.kv_cache_dtype = pages;
}

std::string Numerics::describe() const {
  return std::string(deterministic ? "deterministic, " : "") + "states " + name_of(conv_states) + " and " +
         name_of(states) + ", pages " + name_of(pages);
}

Traffic::Traffic(const Trace& trace) : trace_(trace) {}
Traffic::~Traffic() {
  drop_everything();
  std::error_code ignored;
  std::filesystem::remove_all(files_folder(), ignored);
}

void Traffic::fail(const std::string& what) {
  if (problem_.empty()) problem_ = "operation " + std::to_string(done_) + ": " + what;
}

void Traffic::fail_number(const std::string& what) {
  ++astray_;
  if (!unrounded_) return fail(what);
  if (astray_ > 3 && astray_ * 8 > compared_)
    fail(what + ", the " + std::to_string(astray_) + "th of " + std::to_string(compared_));
}

std::string Traffic::run() {
  try {
    std::filesystem::create_directories(files_folder());
    begin_operation(0);
    draw_numerics();
    EngineOptions plain = model_options(trace_.family);
    plain.num_threads = 1;
    plain.enable_prefix_caching = false;
    plain.use_replayssm = ReplayMode::kOff;
    plain.cache_layout = CacheLayout::kElastic;
    load_reference(plain);
    if (numerics_.rounds() && !numerics_.deterministic) {
      Numerics{}.apply(plain);
      unrounded_ = Engine::load(plain);
    }
    start_engine();
    end_operation();
    const size_t count = trace_.script.empty() ? static_cast<size_t>(trace_.operations) + 1 : trace_.script.size();
    for (size_t number = 1; number < count && problem_.empty(); ++number) {
      done_ = static_cast<int64_t>(number);
      begin_operation(number);
      operate(draws_.operation(kOperations));
      end_operation();
    }
    for (int64_t steps = 0; engine_->has_unfinished_requests() && problem_.empty(); ++steps) {
      step();
      if (steps > 20000) fail("requests do not end");
    }
    if (problem_.empty()) check_end();
  } catch (const std::exception& error) {
    fail(std::string("thrown: ") + error.what());
  }
  return problem_;
}

void Traffic::draw_numerics() {
  if (trace_.plain) return;
  numerics_.deterministic = once_in("deterministic", 4);
  if (once_in("pages", 3))
    numerics_.pages = one_of("pages_type", {DType::kFloat16, DType::kBFloat16, DType::kInt8, DType::kFloat8E4M3});
  // Rounding a state where a chunk ends is not the same for all chunks.
  if (numerics_.deterministic) return;
  if (once_in("states", 3))
    numerics_.states = one_of("states_type", {DType::kFloat16, DType::kBFloat16, DType::kInt16, DType::kInt8});
  if (once_in("conv", 4)) numerics_.conv_states = one_of("conv_type", {DType::kFloat16, DType::kBFloat16});
}

// Not every family has states that can be whole numbers.
void Traffic::load_reference(EngineOptions plain) {
  numerics_.apply(plain);
  try {
    reference_ = Engine::load(plain);
  } catch (const Error& error) {
    if (!numerics_.has_scales() || error.code() != ErrorCode::kInvalidConfig) throw;
    numerics_.states.reset();
    numerics_.apply(plain);
    reference_ = Engine::load(plain);
  }
}

EngineOptions Traffic::draw_options() {
  EngineOptions options = model_options(trace_.family);
  options.num_threads = 1;
  numerics_.apply(options);
  options.poison_pools = true;
  options.verify_states = once_in("verify", 2);
  options.mamba_cache_mode = one_of("mode", {MambaCacheMode::kAuto, MambaCacheMode::kAuto, MambaCacheMode::kAll,
                                             MambaCacheMode::kAlign, MambaCacheMode::kNone});
  if (trace_.plain) options.mamba_cache_mode = MambaCacheMode::kAuto;
  options.block_size = 4 << upto("block", 3);
  options.mamba_block_size = options.block_size * (1 + upto("mamba_block", 4));
  options.max_num_seqs = 1 + upto("seqs", 6);
  options.max_num_batched_tokens =
      options.max_num_seqs + one_of<int64_t>("tokens", {0, 1, 3 + upto("few", 13), 16 + upto("more", 64), 512});
  options.preemption = one_of("preemption", {PreemptionMode::kAuto, PreemptionMode::kPark, PreemptionMode::kRecompute});
  if (trace_.fault == PlantedFault::kLeakSlot) options.preemption = PreemptionMode::kRecompute;
  if (trace_.fault == PlantedFault::kDropPark) options.preemption = PreemptionMode::kPark;
  options.scheduling_policy = one_of("policy", {SchedulingPolicy::kPriority, SchedulingPolicy::kFcfs});
  if (trace_.layout == CacheLayout::kShared || (!trace_.plain && once_in("shared", 4)))
    options.cache_layout = CacheLayout::kShared;
  draw_replay(options);
  if (once_in("threshold", 3)) options.long_prefill_token_threshold = 1 + upto("long", 30);
  options.kv_cache_memory_bytes = int64_t{1} << 30;
  return options;
}

// Where the engine allows it: docs/cache.md.
void Traffic::draw_replay(EngineOptions& options) {
  const bool may_replay = !numerics_.deterministic && !numerics_.has_scales() &&
                          options.cache_layout == CacheLayout::kElastic &&
                          options.mamba_cache_mode != MambaCacheMode::kAll && has_replay(reference_->config());
  if (!may_replay) options.use_replayssm = ReplayMode::kOff;
  if (may_replay && once_in("replay", 2)) options.use_replayssm = ReplayMode::kOn;
  options.replayssm_buffer_len = 1 + upto("ring", 16);
}

void Traffic::start_engine() {
  EngineOptions options = draw_options();
  try {
    engine_ = Engine::load(options);
  } catch (const Error& error) {  // not every model has pages that can be made equal
    if (options.cache_layout != CacheLayout::kShared || error.code() != ErrorCode::kInvalidConfig) throw;
    options.cache_layout = CacheLayout::kElastic;
    engine_ = Engine::load(options);
  }
  const int64_t one = impl().cache->bytes_for(kLongest);
  // From a pool for one sequence on; sessions and their marks hold what they have.
  options.kv_cache_memory_bytes = one + one * upto("pool", 4) + (once_in("large", 2) ? 5 * one : 0);
  engine_ = Engine::load(options);
  impl().cache->plant(trace_.fault);
  free_slots_ = engine_->free_state_slots();
  free_pages_ = engine_->free_attention_pages();
  computed_.clear();
  std::ostringstream text;
  text << trace_.family << " seed " << trace_.seed << ": " << numerics_.describe() << ", "
       << mamba_cache_mode_name(options.mamba_cache_mode) << ", " << preemption_mode_name(options.preemption) << ", "
       << scheduling_policy_name(options.scheduling_policy) << ", " << cache_layout_name(options.cache_layout)
       << (options.use_replayssm == ReplayMode::kOn ? ", replayed" : "") << ", blocks of " << options.block_size
       << " and " << *options.mamba_block_size << ", " << options.max_num_seqs << " sequences, "
       << options.max_num_batched_tokens << " tokens, " << options.kv_cache_memory_bytes << " bytes";
  description_ = text.str();
}

void Traffic::begin_operation(size_t number) {
  if (!trace_.script.empty()) return draws_.as_written(trace_.script.at(number));
  draws_.by_chance(trace_.seed * 1000003 + number);
  if (number == 0) draws_.name_operation("engine");
}

void Traffic::end_operation() { script_.push_back(draws_.line()); }

void Traffic::operate(const std::string& name) {
  const std::string operation = name;  // what is drawn is written behind it
  if (operation == "add") return add();
  if (operation == "step") return step();
  if (operation == "cancel") return cancel();
  if (operation == "poison") return poison();
  if (operation == "clear") return engine_->clear_prefix_cache();
  if (operation == "restart") return restart();
  talk(operation);
  check_books();
}

// Begins like something that was said before, more often than not.
Ids Traffic::prompt(int64_t room) {
  Ids ids;
  if (!said_.empty() && !once_in("new", 4)) {
    ids = said_[static_cast<size_t>(upto("said", std::ssize(said_)))];
    if (once_in("cut", 2)) ids.resize(static_cast<size_t>(1 + upto("cut_at", std::ssize(ids))));
    if (once_in("edit", 5))
      ids[static_cast<size_t>(upto("edit_at", std::ssize(ids)))] = static_cast<int32_t>(upto("edited", 250));
  }
  const int64_t more = once_in("longer", 3) ? upto("length", 60) : upto("length", 8);
  std::mt19937_64 text(static_cast<uint64_t>(upto("text", int64_t{1} << 40)));
  for (int64_t i = more; i >= 0; --i) ids.push_back(static_cast<int32_t>(text() % 250));
  if (std::ssize(ids) > room) ids.resize(static_cast<size_t>(std::max<int64_t>(room - upto("room", 20), 1)));
  return ids;
}

std::vector<float> Traffic::logits_alone(std::span<const int32_t> ids) {
  auto session = reference_->open_session();
  return families::logits_of(*session, ids, kLongest);
}

Traffic::Bound Traffic::bound(std::span<const int32_t> ids) {
  Bound bound{.most = kOfOrder, .ids = Ids(ids.begin(), ids.end()), .unrounded = {}};
  if (!unrounded_) return bound;
  const auto whole = unrounded_->open_session();
  bound.unrounded = families::logits_of(*whole, ids, kLongest);
  for (const int64_t chunk : {1, 2, 3, 4, 6, 9}) widen(bound, [&] { return chunk; });
  return bound;
}

void Traffic::widen(Bound& bound, const std::function<int64_t()>& next_chunk) {
  const auto session = reference_->open_session();
  std::vector<float> rounded;
  for (std::span<const int32_t> left = bound.ids; !left.empty();) {
    const auto chunk = static_cast<size_t>(std::min(next_chunk(), std::ssize(left)));
    const std::vector<float> rows = families::logits_of(*session, left.first(chunk), kLongest);
    rounded.insert(rounded.end(), rows.begin(), rows.end());
    left = left.subspan(chunk);
  }
  for (size_t i = 0; i < rounded.size(); ++i) {
    const double apart = std::fabs(static_cast<double>(rounded[i]) - static_cast<double>(bound.unrounded[i]));
    bound.most = std::max(bound.most, kOfOrder + kTimesRounding * apart);
  }
}

bool Traffic::is_within(double apart, Bound& bound) {
  std::mt19937_64 random(trace_.seed + static_cast<uint64_t>(bound.wider));
  while (!(apart < bound.most) && std::isfinite(apart) && !bound.unrounded.empty() && bound.wider < kMostCuts) {
    // As a prompt is read, in chunks, and an answer written behind it, token by token.
    auto prompt = static_cast<int64_t>(random() % bound.ids.size());
    const auto longest = static_cast<uint64_t>(1 + random() % 24);
    widen(bound, [&] {
      const auto chunk = std::min(prompt, static_cast<int64_t>(1 + random() % longest));
      prompt -= chunk;
      return std::max<int64_t>(chunk, 1);
    });
    ++bound.wider;
  }
  return apart < bound.most;
}

// As if the process had been killed: what runs is lost, what was saved goes on elsewhere.
void Traffic::restart() {
  check_books();
  drop_everything();
  start_engine();
}

void Traffic::drop_everything() {
  asked_.clear();
  aborted_.clear();
  talks_.clear();
  marks_.clear();
  engine_.reset();
}

void Traffic::check_books() {
  std::vector<const Sequence*> sequences(impl().held.begin(), impl().held.end());
  for (const auto& [number, answer] : impl().answers) sequences.push_back(answer.sequence.get());
  const std::string books = impl().cache->audit(sequences);
  if (!books.empty()) fail(books);
  const EngineStats stats = engine_->stats();
  if (stats.leaked_slots != 0) fail(std::to_string(stats.leaked_slots) + " leaked slots");
  if (stats.broken_states != 0) fail("a state was not what its tag said");
  if (stats.recurrent_bytes + stats.attention_bytes > stats.memory_bytes) fail("more memory than allowed");
}

void Traffic::check_end() {
  check_books();
  for (Talk& talk : talks_) check_talk(talk);
  talks_.clear();
  marks_.clear();
  engine_->clear_prefix_cache();
  if (engine_->free_state_slots() != free_slots_) fail("slots are left in use");
  if (engine_->free_attention_pages() != free_pages_) fail("pages are left in use");
  if (engine_->stats().parked_bytes != 0) fail("parked bytes are left");
}

// ---- shrinking -------------------------------------------------------------------------------------------------

namespace {

std::string text_of(const Trace& trace, const std::string& problem) {
  std::ostringstream text;
  text << problem << "\n  Trace{.family = \"" << trace.family << "\", .script = {";
  for (size_t i = 0; i < trace.script.size(); ++i) text << (i > 0 ? ", " : "") << '"' << trace.script[i] << '"';
  text << "}, .layout = CacheLayout::" << (trace.layout == CacheLayout::kShared ? "kShared" : "kElastic")
       << ", .plain = " << (trace.plain ? "true" : "false") << "}";
  return text.str();
}

}  // namespace

// Leaves out runs of operations, shorter and shorter ones, as long as something is still wrong.
std::string shrunk(const Trace& whole, const std::vector<std::string>& script, const std::string& problem,
                   double seconds) {
  const auto begin = std::chrono::steady_clock::now();
  const auto has_time = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() < seconds;
  };
  Trace trace = whole;
  std::string last = problem;
  trace.script = script;
  const auto still_fails = [&](const Trace& tried) {
    const std::string found = Traffic(tried).run();
    if (!found.empty()) last = found;
    return !found.empty();
  };
  for (size_t piece = trace.script.size() / 2; piece >= 1 && has_time();) {
    bool shorter = false;
    for (size_t at = 1; at < trace.script.size() && has_time();) {  // the first is the engine's
      Trace tried = trace;
      const auto from = tried.script.begin() + static_cast<int64_t>(at);
      tried.script.erase(from, from + static_cast<int64_t>(std::min(piece, trace.script.size() - at)));
      if (still_fails(tried)) {
        trace = std::move(tried);
        shorter = true;
      } else {
        at += piece;
      }
    }
    if (!shorter) piece /= 2;
    piece = std::min(piece, trace.script.size());
  }
  return text_of(trace, last);
}

}  // namespace coluber::soak
