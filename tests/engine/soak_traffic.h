// SPDX-License-Identifier: Apache-2.0
//
// Random traffic over one engine at a time (requests, sessions, cancels, restarts from files), held to a reference that
// cannot be wrong: whatever is said is computed again by one sequence alone, in one piece, without a cache, and the
// probability of every token compared; bit for bit where the engine is deterministic. Each operation draws from random
// numbers of its own, and is written down with what it chose: so a trace stays repeatable when operations are left out
// of it (`shrunk` does so until few are left), and when the traffic learns new ones. One thread.
#pragma once

#include <functional>
#include <map>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "coluber/mamba_base.h"
#include "engine/engine_impl.h"
#include "families.h"
#include "soak_draws.h"

namespace coluber {

struct EngineTestAccess {
  static Engine::Impl& impl(Engine& engine) { return *engine.impl_; }
};

namespace soak {

struct Trace {
  std::string family;
  uint64_t seed = 0;
  int64_t operations = 400;
  PlantedFault fault = PlantedFault::kNone;
  std::vector<std::string> script = {};        // these operations, the engine's choices first; empty: by chance
  CacheLayout layout = CacheLayout::kElastic;  // kShared: always; else sometimes
  bool plain = false;                          // in float32, with checkpoints where they pay: where faults are planted
};

using Ids = std::vector<int32_t>;

// What the numbers of a trace are made of; the reference shares it.
struct Numerics {
  bool deterministic = false;
  std::optional<DType> conv_states;
  std::optional<DType> states;
  std::optional<DType> pages;

  void apply(EngineOptions& options) const;
  bool has_scales() const noexcept { return states == DType::kInt16 || states == DType::kInt8; }
  bool rounds() const noexcept { return conv_states || states || pages; }
  std::string describe() const;
};

class Traffic {
 public:
  explicit Traffic(const Trace& trace);
  ~Traffic();

  // The first thing that is wrong; empty where all is well.
  std::string run();
  int64_t operations() const noexcept { return done_ + steps_; }
  int64_t failed_at() const noexcept { return done_; }
  const std::string& describe() const noexcept { return description_; }
  const Numerics& numerics() const noexcept { return numerics_; }
  // What was done, as a Trace::script.
  const std::vector<std::string>& script() const noexcept { return script_; }

 private:
  struct Asked {
    Request request;
    bool poisoned = false;  // NaN was put into its state
    int64_t cancel_after = -1;
    int64_t terminates_after = 0;  // tokens, by its constraint; 0: it does not
    std::map<int64_t, std::vector<TokenOutput>> answers;
    std::map<int64_t, std::string> texts;
    std::vector<std::vector<TokenOutput>> expected;  // of a deterministic engine, by seed
    double worst_score = 0.0;                        // best_of, beams: of the answers that came so far
  };
  // A session and what it must hold.
  struct Talk {
    std::unique_ptr<Session> session;
    Ids tokens;
    Ids pending;
    std::vector<float> logits;
  };
  struct Mark {
    SessionCheckpoint checkpoint;
    Ids tokens;
    std::vector<float> logits;
  };
  struct Saved {
    std::string path;
    Ids tokens;
    Ids pending;
    std::vector<float> logits;
  };
  struct Said {
    std::string salt;
    Ids ids;
  };

  int64_t upto(const char* name, int64_t n) { return draws_.upto(name, n); }
  bool once_in(const char* name, int64_t n) { return draws_.once_in(name, n); }
  template <typename T>
  T one_of(const char* name, std::initializer_list<T> values) {
    return *(values.begin() + upto(name, std::ssize(values)));
  }
  void fail(const std::string& what);
  auto& impl() { return EngineTestAccess::impl(*engine_); }
  // A number that is not what it should be. Where states are rounded, a choice of experts may turn over: of what was
  // compared an eighth may go astray.
  void fail_number(const std::string& what);

  // ---- the whole (soak_traffic.cc)
  void draw_numerics();
  void load_reference(EngineOptions plain);
  EngineOptions draw_options();
  void draw_replay(EngineOptions& options);
  void start_engine();
  void begin_operation(size_t number);
  void end_operation();
  void operate(const std::string& operation);
  Ids prompt(int64_t room);
  void restart();
  void check_books();
  void check_end();
  void drop_everything();

  // One sequence alone: the logits after each token, [T, V].
  std::vector<float> logits_alone(std::span<const int32_t> ids);
  // How far numbers may lie from these where chunks and batches differ: what other orders of sums may change, and where
  // states are rounded, several times what rounding elsewhere changes in this very text.
  struct Bound {
    double most = 0.0;
    Ids ids;
    std::vector<float> unrounded;  // [T, V]; empty where nothing is rounded
    int64_t wider = 0;             // by so many random cuts so far
  };
  Bound bound(std::span<const int32_t> ids);
  // Whether so much may lie between two numbers. Each cut rounds states elsewhere, and where experts are chosen, a bit
  // may choose another one, in a few cuts of hundreds: a bound is widened by cuts at random places before a number is
  // beyond it.
  bool is_within(double apart, Bound& bound);
  void widen(Bound& bound, const std::function<int64_t()>& next_chunk);

  // ---- requests (soak_requests.cc)
  void add();
  void ask_for_answers(Asked& asked);
  void ask_for_beams(Asked& asked);
  void steer(Asked& asked);
  void cancel();
  void poison();
  void step();
  void take(RequestOutput& output);
  void check_hit(const Asked& asked, const RequestOutput& output);

  // ---- answers (soak_answers.cc)
  void check_answer(Asked& asked, const RequestOutput& output, const std::vector<TokenOutput>& tokens);
  void check_order(Asked& asked, const RequestOutput& output, const std::vector<TokenOutput>& tokens);
  void check_ending(const Asked& asked, const RequestOutput& output, const std::vector<TokenOutput>& tokens);
  void check_exactly(Asked& asked, int64_t index, const std::vector<TokenOutput>& tokens);
  // What one request alone in the reference answers, by index.
  std::vector<std::vector<TokenOutput>> answers_alone(Request request);
  // Each token's probability as one sequence alone gives it, and that it might be chosen.
  void check_tokens(std::span<const int32_t> before, const std::vector<TokenOutput>& tokens, const Request& request);
  void check_prompt(const Asked& asked, const std::vector<TokenOutput>& scored);
  void check_embedding(const Asked& asked, const std::vector<float>& found);
  std::vector<float> embedding_alone(Engine& engine, const Request& request, int64_t chunk);

  // ---- sessions (soak_sessions.cc)
  void talk(const std::string& operation);
  Talk& some_talk() { return talks_[static_cast<size_t>(upto("talk", std::ssize(talks_)))]; }
  void open_talk();
  void extend_talk(Talk& talk);
  void cut_short(Talk& talk);
  void answer_in(Talk& talk);
  void fork_talk(Talk& talk);
  void mark(Talk& talk);
  void go_back(Talk& talk);
  void save(Talk& talk);
  void load(Talk& talk);
  void read(Talk& talk, std::span<const int32_t> ids);
  void check_talk(Talk& talk);
  void check_logits(std::span<const int32_t> tokens, std::span<const float> found);
  // Runs what may lack memory; afterwards the session holds what it held, or nothing.
  template <typename Work>
  bool unless_full(Talk& talk, Work work);

  static constexpr int64_t kLongest = 240;
  static constexpr int64_t kMostNew = 14;

  Trace trace_;
  Numerics numerics_;
  Draws draws_;
  std::vector<std::string> script_;
  std::unique_ptr<Engine> reference_;
  std::unique_ptr<Engine> unrounded_;  // where the reference rounds: the same in float32
  std::unique_ptr<Engine> engine_;
  std::map<RequestId, Asked> asked_;
  std::vector<Said> computed_;  // by this engine, prompts with what was answered so far: what may be found in its cache
  std::vector<Ids> said_;       // prompts with answers
  std::vector<Talk> talks_;
  std::vector<Mark> marks_;
  std::vector<Saved> saved_;
  std::set<RequestId> aborted_;
  std::string problem_;
  std::string description_;
  int64_t done_ = 0;
  int64_t steps_ = 0;
  int64_t files_ = 0;
  int64_t compared_ = 0;  // answers and places of sessions
  int64_t astray_ = 0;
  int64_t free_slots_ = 0;
  int64_t free_pages_ = 0;
};

// As few of the `script`'s operations as `seconds` find that still go wrong, with what is wrong, as a line that can
// stand in a test.
std::string shrunk(const Trace& trace, const std::vector<std::string>& script, const std::string& problem,
                   double seconds);

}  // namespace soak
}  // namespace coluber
