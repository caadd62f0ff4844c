// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>
#include <map>
#include <optional>

#include "apps/cli/arguments.h"
#include "apps/cli/bench_machine.h"
#include "apps/cli/bench_report.h"
#include "apps/cli/cli.h"
#include "apps/cli/engine_options.h"
#include "apps/cli/output.h"
#include "apps/cli/synthetic_model.h"
#include "base/cpu_features.h"
#include "base/error.h"
#include "base/json.h"
#include "base/thread_pool.h"
#include "coluber/mamba_base.h"
#include "engine/description.h"
#include "kernels/roofline/device_roofline.h"
#include "tensor/launch_times.h"

namespace coluber::cli {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

struct BenchOptions {
  EngineFlags engine;
  std::string synthetic;
  BenchSizes sizes;
  bool json = false;
};

// Tokens a second of every repetition.
struct Rates {
  std::vector<double> prompt;
  std::vector<double> decode;
};

// Decode steps of a repetition behind those that count, whose operations a device times one by one.
constexpr int64_t kTimedSteps = 3;

Spread spread(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  const double median = n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2.0;
  return {median, values.front(), values.back()};
}

std::vector<int32_t> random_prompt(int64_t tokens, int64_t vocab_size, uint64_t seed) {
  std::vector<int32_t> ids(static_cast<size_t>(tokens));
  uint64_t state = seed * 0x9E3779B97F4A7C15ull + 1;
  for (int32_t& id : ids) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    id = static_cast<int32_t>((state >> 33) % static_cast<uint64_t>(vocab_size));
  }
  return ids;
}

class Workload {
 public:
  Workload(Engine& engine, BenchMachine& machine, const BenchSizes& sizes)
      : engine_(engine), machine_(machine), sizes_(sizes) {
    if (machine.device() != nullptr) times_.emplace(*machine.device());
  }

  // Short, so that buffers have their size and weights are in memory before anything is timed.
  void warm_up() {
    decode(std::min<int64_t>(sizes_.prompt, engine_.config().scheduler.max_num_batched_tokens), 2);
    operations_us_.clear();
  }

  void repeat(Rates& rates) {
    // One sequence alone: the way to its first token is the prefill, and need not be run apart.
    double prefill_s = sizes_.batch == 1 ? 0.0 : prefill();
    const double decode_s = decode(sizes_.prompt, sizes_.gen);
    if (sizes_.batch == 1) prefill_s = first_tokens_s_;
    rates.prompt.push_back(static_cast<double>(sizes_.batch * sizes_.prompt) / prefill_s);
    rates.decode.push_back(static_cast<double>(sizes_.batch * sizes_.gen) / decode_s);
  }

  // Microseconds of each operation of a decode step, medians; empty on the processor.
  std::map<std::string, double> operations_us() const {
    std::map<std::string, double> medians;
    for (const auto& [operation, us] : operations_us_) medians[operation] = spread(us).median;
    return medians;
  }

 private:
  void add_requests(int64_t prompt, int64_t max_tokens) {
    SamplingParams sampling;
    sampling.temperature = 0.0f;
    sampling.ignore_eos = true;
    sampling.max_tokens = max_tokens;
    for (int64_t i = 0; i < sizes_.batch; ++i) {
      const uint64_t seed = static_cast<uint64_t>(i + 1);
      ids_.push_back(engine_.add_request({random_prompt(prompt, engine_.model_info().vocab_size, seed), sampling}));
    }
  }

  // One engine step; counts the requests that got their first token.
  void step() {
    const EndAtInterrupt guard;
    for (const RequestOutput& output : engine_.step()) {
      if (output.finish_reason == FinishReason::kError) throw Error(ErrorCode::kInternal, "bench: " + output.error);
      if (output.completion_tokens == 1) ++started_;
    }
  }

  // Seconds from prompts to first tokens; no decode step is mixed in, as each request ends with its first token.
  double prefill() {
    const auto start = Clock::now();
    add_requests(sizes_.prompt, 1);
    while (engine_.has_unfinished_requests()) step();
    const double seconds = seconds_since(start);
    finish();
    return seconds;
  }

  // Seconds of `steps` steps in which every sequence of the batch gets a token.
  double decode(int64_t prompt, int64_t steps) {
    // The first sequences decode while the last ones read their prompts.
    const int64_t chunk = engine_.config().scheduler.max_num_batched_tokens;
    const int64_t slack = sizes_.batch * (prompt + chunk) / std::max<int64_t>(1, chunk - sizes_.batch) + sizes_.batch;
    const auto added = Clock::now();
    add_requests(prompt, steps + slack + 1 + kTimedSteps);
    while (started_ < sizes_.batch) step();
    first_tokens_s_ = seconds_since(added);
    const auto start = Clock::now();
    for (int64_t i = 0; i < steps; ++i) step();
    const double seconds = seconds_since(start);
    if (times_) time_operations();
    finish();
    return seconds;
  }

  void time_operations() {
    machine_.device()->note_launches(&*times_);
    for (int64_t i = 0; i < kTimedSteps; ++i) {
      step();
      for (const auto& [operation, us] : times_->take()) operations_us_[operation].push_back(us);
    }
    machine_.device()->note_launches(nullptr);
  }

  void finish() {
    machine_.note_memory();
    for (const RequestId id : ids_) engine_.abort(id);
    ids_.clear();
    started_ = 0;
  }

  Engine& engine_;
  BenchMachine& machine_;
  const BenchSizes& sizes_;
  std::optional<LaunchTimes> times_;  // of a device
  std::map<std::string, std::vector<double>> operations_us_;
  std::vector<RequestId> ids_;
  int64_t started_ = 0;
  double first_tokens_s_ = 0.0;  // of the last `decode`: until every sequence had its first token
};

void declare(Arguments& arguments, BenchOptions& options) {
  options.engine.declare_model(arguments);
  arguments.section("Measurement");
  arguments.text("--synthetic", &options.synthetic, "SHAPE",
                 "random weights of a published shape, made in memory, instead of MODEL");
  arguments.integer("--prompt", &options.sizes.prompt, {1, 1 << 24}, "tokens of each prompt");
  arguments.integer("--gen", &options.sizes.gen, {1, 1 << 24}, "decode steps after the prompt");
  arguments.integer("--batch", &options.sizes.batch, {1, 4096}, "sequences at once");
  arguments.integer("--reps", &options.sizes.reps, {1, 1000}, "repetitions; the median is reported, with the range");
  arguments.section("Output");
  arguments.flag("--json", &options.json, "one JSON object");
  options.engine.declare(arguments);
  options.engine.declare_memory(arguments);
  arguments.example("coluber bench", "the built-in model on all cores");
  arguments.example("coluber bench --synthetic mamba2-370m --threads 2", "a published shape without a download");
  arguments.example("coluber bench path/to/model --batch 8 --prompt 1024 --gen 128 --reps 5",
                    "eight sequences at once");
  arguments.example("coluber bench --synthetic mamba-130m --json", "for a program");
  std::string shapes;
  for (const std::string& name : synthetic_shapes()) shapes += (shapes.empty() ? "" : ", ") + name;
  arguments.footnote("Shapes: " + shapes + ".");
  arguments.footnote(
      "The machine is measured before the model, and again after each repetition. The processor, with the same "
      "threads: "
      "bytes read from memory, and float32 multiply-adds in registers. A CUDA device: bytes copied, read and written, "
      "and bfloat16 products of its tensor cores by mma.sync. Decoding is compared with the bytes that a step must "
      "move "
      "(weights once, each sequence's states read and written), prefill with its matrix products alone. All figures "
      "are "
      "medians. On a device each repetition ends with three steps whose operations are timed one by one, behind work "
      "that lets the host get ahead: what of a step they do not fill is the host's, logits on their way to it, and "
      "gaps.");
}

std::unique_ptr<Engine> load(const BenchOptions& options, EngineOptions engine_options) {
  if (options.synthetic.empty()) return load_engine_with_progress(std::move(engine_options));
  SyntheticModel synthetic = make_synthetic_model(options.synthetic);
  return Engine::from_weights(engine_options, synthetic.config_json, std::move(synthetic.weights));
}

int64_t state_bytes(const EngineConfig& config) {
  int64_t bytes = 0;
  for (const AttentionLayerBase* layer : config.layers) {
    const KVCacheSpec spec = layer->get_kv_cache_spec(config);
    if (const MambaSpec* mamba = std::get_if<MambaSpec>(&spec)) bytes += mamba->state_content_size_bytes();
  }
  return bytes;
}

// Operations of the matrix products of a prefill over the batch: the head is computed for the last row of each prompt
// only.
double prefill_flops(const ModelInfo& info, const BenchSizes& sizes) {
  const double head = static_cast<double>(info.vocab_size) * static_cast<double>(info.hidden_size);
  const double body = static_cast<double>(info.matmul_parameters) - head;
  return 2.0 * static_cast<double>(sizes.batch) * (body * static_cast<double>(sizes.prompt) + head);
}

// The most tokens of a sequence, as the model's config or the user limits them; read from headers alone.
int64_t model_limit(const BenchOptions& options, const EngineOptions& engine_options) {
  if (options.synthetic.empty()) return describe_model(engine_options).config->max_model_len;
  const Json config = value_or_throw(parse_json(make_synthetic_model(options.synthetic).config_json, "the shape"));
  const Json* own = config.find("max_position_embeddings");
  const int64_t limit = own != nullptr ? own->as_int() : std::numeric_limits<int64_t>::max();
  return engine_options.max_model_len > 0 ? std::min(limit, engine_options.max_model_len) : limit;
}

void check_fits(const BenchOptions& options, int64_t needed, int64_t limit) {
  if (needed <= limit) return;
  throw make_error(
      ErrorCode::kContextLength,
      "bench: --prompt {} and --gen {} with --batch {} make sequences of up to {} tokens, and the limit is "
      "{} (the model's, or --max-model-len); give a smaller --prompt or --gen",
      options.sizes.prompt, options.sizes.gen, options.sizes.batch, needed, limit);
}

// The most tokens that a sequence of the workload holds.
int64_t needed_model_len(const BenchOptions& options, int64_t chunk) {
  return options.sizes.prompt + options.sizes.gen +
         options.sizes.batch * (options.sizes.prompt + chunk) / std::max<int64_t>(1, chunk - options.sizes.batch) +
         options.sizes.batch + 2 + kTimedSteps;
}

EngineOptions prepare(const BenchOptions& options) {
  if (!options.synthetic.empty() && !options.engine.model.empty()) {
    throw make_error(ErrorCode::kInvalidArgument,
                     "bench: both a model ('{}') and --synthetic {} were given; leave one out", options.engine.model,
                     options.synthetic);
  }
  EngineOptions engine_options = options.engine.options(options.synthetic.empty());
  engine_options.max_num_seqs = options.sizes.batch;
  engine_options.enable_prefix_caching =
      false;  // a repetition must compute its prompts, not find those of the last one
  if (engine_options.max_num_batched_tokens <= options.sizes.batch) {
    throw make_error(ErrorCode::kInvalidArgument, "bench: --max-num-batched-tokens must be above --batch {}, found {}",
                     options.sizes.batch, engine_options.max_num_batched_tokens);
  }
  const int64_t needed = needed_model_len(options, engine_options.max_num_batched_tokens);
  check_fits(options, needed, model_limit(options, engine_options));
  if (engine_options.max_model_len == 0) engine_options.max_model_len = needed;
  return engine_options;
}

// Bytes that a decode step must move: weights once, each sequence's states read and written.
double step_bytes(const Engine& engine, const BenchSizes& sizes) {
  const auto weights = static_cast<double>(engine.model_info().streamed_bytes);
  return weights + 2.0 * static_cast<double>(sizes.batch) * static_cast<double>(state_bytes(engine.config()));
}

void fill_machine(const BenchMachine& machine, BenchReport& report) {
  report.peak_rss_mb = machine.peak_memory_mb();
  report.memory_gbps = spread(machine.memory_gbps()).median;
  report.gflops = spread(machine.gflops()).median;
  report.cache_bytes = cpu_features().l3_bytes;
  const CudaDevice* device = machine.device();
  if (device == nullptr) return;
  report.cache_bytes = device->info().l2_bytes;
  report.device =
      BenchDevice{std::string(device->name()), device->info().name, kDeviceProducts, machine.device_memory_mb()};
}

}  // namespace

int bench_command(const std::vector<std::string>& args) {
  Arguments arguments("bench",
                      "Measures how fast a model reads prompts and writes tokens here, and what share that is of what "
                      "this machine's memory and arithmetic allow.");
  BenchOptions options;
  declare(arguments, options);
  arguments.command("serve", "ask a server as many clients would, and measure what they wait for", bench_serve_command);
  if (const std::optional<int> status = arguments.dispatch(args)) return *status;
  if (!arguments.parse(args)) return 0;
  const EngineOptions engine_options = prepare(options);

  BenchReport report;
  report.model = options.synthetic.empty() ? engine_options.model : "synthetic " + options.synthetic;
  report.sizes = options.sizes;
  const auto start = Clock::now();
  const std::unique_ptr<Engine> engine = load(options, engine_options);
  report.load_s = seconds_since(start);
  report.threads = engine_options.num_threads > 0 ? engine_options.num_threads : usable_cores();
  BenchMachine machine(engine->device(), report.threads);
  machine.measure();
  Workload workload(*engine, machine, options.sizes);
  workload.warm_up();
  Rates rates;
  for (int64_t i = 0; i < options.sizes.reps; ++i) {
    workload.repeat(rates);
    machine.measure();
  }
  fill_machine(machine, report);
  report.prompt_tps = spread(rates.prompt);
  report.decode_tps = spread(rates.decode);
  report.step_bytes = step_bytes(*engine, options.sizes);
  report.prefill_flops = prefill_flops(engine->model_info(), options.sizes);
  if (machine.device() != nullptr)
    report.split =
        StepSplit{static_cast<double>(options.sizes.batch) / report.decode_tps.median * 1e6, workload.operations_us()};
  if (options.json) {
    output().write(json_line(report_json(report)));
  } else {
    output().write(report_text(report));
  }
  return 0;
}

}  // namespace coluber::cli
