// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>

#include "apps/cli/arguments.h"
#include "apps/cli/cli.h"
#include "apps/cli/engine_options.h"
#include "apps/cli/output.h"
#include "apps/cli/output_path.h"
#include "apps/cli/progress.h"
#include "base/error.h"
#include "engine/limits.h"
#include "coluber/session.h"
#include "formats/safetensors.h"

namespace coluber::cli {
namespace {

struct LogitsOptions {
  EngineFlags engine;
  std::string ids;
  std::string out;
  int64_t chunk = 0;
  int64_t greedy = 0;
  bool hidden = false;
  bool states = false;
};

// Rows of [T, cols] that grow as steps hand them over.
struct Rows {
  std::vector<float> values;
  int64_t cols = 0;
  void append(const float* more, int64_t rows, int64_t width) {
    cols = width;
    values.insert(values.end(), more, more + rows * width);
  }
  int64_t rows() const { return cols == 0 ? 0 : static_cast<int64_t>(values.size()) / cols; }
};

struct Collected {
  Rows logits;
  std::map<int, Rows> hidden;
  std::vector<ExportedState> states;
  std::vector<int64_t> greedy;
  int64_t steps = 0;
};

void declare(Arguments& arguments, LogitsOptions& options) {
  options.engine.declare_model(arguments);
  arguments.section("What to compute");
  arguments.text("--ids", &options.ids, "LIST|@FILE", "token ids as 1,2,3, or a file that holds them (required)");
  arguments.text("--out", &options.out, "FILE", "safetensors file to write: all of it or nothing (required)");
  arguments.integer("--chunk", &options.chunk, {0, kMostBatchedTokens},
                    "tokens of one engine step, 1: every token by the decode path; 0: as --max-num-batched-tokens");
  arguments.flag("--hidden", &options.hidden, "add hidden.0, hidden.1, ... [T, D]");
  arguments.flag("--states", &options.states,
                 "add the states after the ids: state.I.conv (the W-1 columns that are kept), state.I.recurrent, "
                 "state.I.key, state.I.value, and what other kinds of layers keep");
  arguments.integer("--greedy", &options.greedy, {0, int64_t{1} << 31},
                    "add greedy [N]: tokens that follow, one a step, past end tokens");
  options.engine.declare(arguments);
  arguments.example("coluber logits --ids 1,2,3 --out logits.safetensors", "logits [3, V] of the built-in model");
  arguments.example("coluber logits path/to/model --ids @ids.txt --out full.safetensors --hidden --states",
                    "everything that a step computes");
  arguments.example("coluber logits path/to/model --ids @ids.txt --out one.safetensors --chunk 1 --greedy 24",
                    "token by token, and the greedy continuation");
  arguments.footnote("The file's metadata tells in 'steps' how many engine steps were taken.");
}

void check_required(const LogitsOptions& options) {
  if (options.ids.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "logits: --ids is missing or empty; give token ids as 1,2,3 or @FILE");
  }
  if (options.out.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "logits: --out is missing; name the safetensors file to write");
  }
}

// As one prompt in steps of `chunk`: what a token is computed with may hang on how long the text is that it stands in.
// Of one token a step, each is a text that grows, as while an answer is decoded.
void feed(Session& session, const std::vector<int32_t>& ids, int64_t chunk, Collected& collected) {
  ProgressBar bar("computing", "tokens");
  const auto collect = [&](const float* logits, int64_t rows) {
    check_interrupt();
    collected.logits.append(logits, rows, collected.logits.cols);
    bar.update(collected.logits.rows(), static_cast<int64_t>(ids.size()));
  };
  if (chunk == 1)
    for (const int32_t& id : ids) session.extend(std::span(&id, 1), 1, collect);
  else
    session.extend(ids, chunk, collect);
}

void continue_greedily(Session& session, int64_t count, Collected& collected) {
  for (int64_t i = 0; i < count; ++i) {
    check_interrupt();
    const std::span<const float> logits = session.last_logits();
    // max_element returns the first of equals: ties go to the lowest id.
    const int32_t token = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    collected.greedy.push_back(token);
    if (i + 1 < count) session.extend(std::span(&token, 1), 1);
  }
}

void write_collected(const LogitsOptions& options, const Collected& collected) {
  std::vector<SafetensorsOutput> tensors;
  const auto add = [&tensors](std::string name, const void* data, DType dtype, const std::vector<int64_t>& shape) {
    const TensorView view = TensorView::contiguous(data, dtype, Shape(std::span<const int64_t>(shape)));
    tensors.push_back(SafetensorsOutput::from_view(std::move(name), view));
  };
  const Rows& logits = collected.logits;
  add("logits", logits.values.data(), DType::kFloat32, {logits.rows(), logits.cols});
  for (const auto& [index, rows] : collected.hidden) {
    add(fmt::format("hidden.{}", index), rows.values.data(), DType::kFloat32, {rows.rows(), rows.cols});
  }
  for (const ExportedState& state : collected.states)
    add(state.name, state.values.data(), DType::kFloat32, state.shape);
  if (options.greedy > 0) {
    add("greedy", collected.greedy.data(), DType::kInt64, {static_cast<int64_t>(collected.greedy.size())});
  }
  write_safetensors(options.out, tensors, {{"steps", std::to_string(collected.steps)}});
}

}  // namespace

int logits_command(const std::vector<std::string>& args) {
  Arguments arguments("logits",
                      "Computes the logits of every place of a list of token ids and writes them as a tensor [T, V] of "
                      "float32, for comparing engines and settings.");
  LogitsOptions options;
  declare(arguments, options);
  if (!arguments.parse(args)) return 0;
  check_required(options);
  const std::vector<int32_t> ids = parse_token_ids(options.ids, "--ids");
  if (ids.empty()) throw Error(ErrorCode::kInvalidArgument, "logits: --ids holds no ids; a model needs at least one");

  EngineOptions engine_options = options.engine.options();
  check_output_path("logits: --out", options.out, engine_options.model);
  if (options.chunk > engine_options.max_num_batched_tokens) engine_options.max_num_batched_tokens = options.chunk;
  const std::unique_ptr<Engine> engine = load_engine_with_progress(engine_options);
  const int64_t vocab_size = engine->model_info().vocab_size;
  check_token_ids(ids, vocab_size);

  Collected collected;
  collected.logits.cols = vocab_size;
  const std::unique_ptr<Session> session = engine->open_session();
  if (options.hidden) {
    session->set_hidden_sink([&collected](int index, const float* values, int64_t rows, int64_t cols) {
      collected.hidden[index].append(values, rows, cols);
    });
  }
  const int64_t steps_before = engine->num_steps();
  feed(*session, ids, options.chunk > 0 ? options.chunk : engine_options.max_num_batched_tokens, collected);
  session->set_hidden_sink({});
  if (options.states) collected.states = session->export_states();
  continue_greedily(*session, options.greedy, collected);
  collected.steps = engine->num_steps() - steps_before;
  write_collected(options, collected);
  notice(fmt::format("wrote {} ({} token{}, {} engine step{})", options.out, ids.size(), ids.size() == 1 ? "" : "s",
                     collected.steps, collected.steps == 1 ? "" : "s"));
  return 0;
}

}  // namespace coluber::cli
