// SPDX-License-Identifier: Apache-2.0
//
// The work of `coluber batch`: checks every line of the input first, then feeds the engine as requests arrive and slots
// come free, and writes each result when it ends. Keeps the books for the progress bar and for --stats. Borrows all it
// is given; one thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <queue>
#include <string>
#include <unordered_map>
#include <vector>

#include "apps/cli/batch_input.h"
#include "apps/cli/batch_output.h"
#include "apps/cli/progress.h"
#include "apps/cli/run_session.h"
#include "coluber/engine.h"
#include "engine/answer_grammars.h"
#include "text/tokenizer/tokenizer.h"

namespace coluber::cli {

class BatchRun {
 public:
  // `tokenizer` is for log-probabilities; null where the model has none.
  BatchRun(Engine& engine, const BatchInput& input, BatchOutput& output, SamplingParams defaults,
           const Tokenizer* tokenizer, std::optional<AskedGrammar> form);

  // Until every line has its result, or Ctrl-C: requests that have not ended are then dropped, without a result.
  void run();

  struct Counts {
    int64_t lines = 0;        // that the input has
    int64_t done_before = 0;  // of them with a result in the output at the start
    int64_t done = 0;         // results written now
    int64_t failed = 0;       // of them with an error
    int64_t cancelled = 0;    // of them ended by cancel_after_tokens
    int64_t with_priority = 0;
    int64_t prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0;
  };
  const Counts& counts() const noexcept { return counts_; }
  double seconds() const noexcept { return seconds_; }
  Json stats() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Waiting {
    const BatchInput::Line* line = nullptr;
    std::string session;   // see file_of; empty: none
    int64_t priority = 0;  // 0 where priorities do not matter
    double arrival_s = 0.0;
  };
  struct Later {  // the queue's top is what comes first
    bool operator()(const Waiting& a, const Waiting& b) const noexcept;
  };
  struct Output {
    std::vector<TokenOutput> tokens;
    std::string text;
    FinishReason finish_reason = FinishReason::kNone;
    double cumulative_logprob = 0.0;
  };
  struct Active {
    BatchRequest request;
    int64_t line = 0;
    std::string session_file;             // as Waiting::session
    std::unique_ptr<RunSession> session;  // null where the line has none
    int64_t prompt_tokens = 0, completion_tokens = 0;
    std::vector<Output> outputs;
    RequestOutput last;  // what it says of the whole request
    std::vector<TokenOutput> prompt_logprobs;
    double started_s = 0.0, first_token_s = -1.0;
  };

  void check_lines();
  // One name for one file, whatever lines call it.
  static std::string file_of(const std::string& session);
  // The lines of a session wait for one another, in the order of arrival.
  void chain_sessions();
  void end_session_line(const std::string& file);
  void admit();
  // False where there is no memory for its session now: it is to wait for the end of another.
  bool start(const Waiting& waiting);
  bool open_session(Active& active);
  // False where it could not be saved: that is the line's result.
  bool save_session(const Active& active);
  std::vector<int32_t> session_ids(const RunSession& session, const BatchRequest& given) const;
  std::vector<int32_t> prompt_ids(const BatchRequest& given) const;
  Request make_request(const BatchRequest& given) const;
  std::shared_ptr<const TokenConstraint> constraint_for(const BatchRequest& given) const;
  void take(RequestOutput&& piece);
  void finish(RequestId id);
  void write_result(const Active& active);
  void write_problem(const Json& id, int64_t line, ErrorCode code, const std::string& problem);
  Json result_json(const Active& active) const;
  void show_progress();
  void wait_for_arrival() const;
  double now_s() const { return std::chrono::duration<double>(Clock::now() - started_).count(); }

  Engine& engine_;
  const BatchInput& input_;
  BatchOutput& output_;
  SamplingParams defaults_;
  const Tokenizer* tokenizer_;
  std::optional<AskedGrammar> form_;          // of lines that name none
  std::unique_ptr<AnswerGrammars> grammars_;  // null where there is no tokenizer
  size_t max_active_;

  std::vector<Waiting> coming_;  // by arrival
  size_t next_ = 0;
  std::priority_queue<Waiting, std::vector<Waiting>, Later> arrived_;
  std::map<RequestId, Active> active_;
  std::unordered_map<std::string, std::deque<Waiting>> later_turns_;  // by session, behind the line that goes on now
  int64_t no_room_at_ = -1;  // results that there were when a session did not fit
  Counts counts_;
  std::vector<double> first_token_s_, whole_s_;  // after the arrival
  Clock::time_point started_;
  double seconds_ = 0.0;
  ProgressBar bar_{"batch", "requests"};
};

}  // namespace coluber::cli
