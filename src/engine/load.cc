// SPDX-License-Identifier: Apache-2.0
#include "engine/load.h"

#include <algorithm>
#include <limits>

#include "base/block_type.h"
#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "engine/cache_dtypes.h"
#include "engine/description.h"
#include "engine/device_choice.h"
#include "engine/fingerprint.h"
#include "engine/host_memory.h"
#include "engine/limits.h"
#include "engine/model_text.h"
#include "engine/replay_choice.h"
#include "formats/gguf.h"
#include "formats/hf_config.h"
#include "formats/model_folder.h"
#include "formats/quantized_weights.h"
#include "formats/weight_source.h"
#include "kernels/op_registry.h"
#include "layers/cache_binding.h"
#include "models/family.h"

namespace coluber {

namespace {

class Problems {
 public:
  void require(bool fine, const std::string& problem) {
    if (fine) return;
    if (!text_.empty()) text_ += "; ";
    text_ += problem;
  }
  void throw_if_any() const {
    if (!text_.empty()) throw Error(ErrorCode::kInvalidArgument, text_);
  }

 private:
  std::string text_;
};

// Tokens between the states of modes all and align.
int64_t checkpoint_block_of(const EngineOptions& options) {
  constexpr int64_t kCheckpointBlock = 256;
  const int64_t block = std::max<int64_t>(options.block_size, 1);
  return options.mamba_block_size.value_or((kCheckpointBlock + block - 1) / block * block);
}

void check_cache_options(const EngineOptions& o, Problems& p) {
  p.require(
      !o.mamba_block_size || (*o.mamba_block_size >= 1 && *o.mamba_block_size <= kMostSequenceTokens),
      fmt::format("mamba_block_size must be 1 to {}, found {}", kMostSequenceTokens, o.mamba_block_size.value_or(0)));
  p.require(!o.mamba_retention_interval || *o.mamba_retention_interval >= 0,
            fmt::format("mamba_retention_interval must be at least 0 (0: only states that a prompt's end or a branch "
                        "needs), found {}",
                        o.mamba_retention_interval.value_or(0)));
  if (o.prefix_match_unit) {
    const int64_t unit = *o.prefix_match_unit;
    const int64_t block = checkpoint_block_of(o);
    p.require(unit >= 1 && o.block_size % std::max<int64_t>(unit, 1) == 0 && block % std::max<int64_t>(unit, 1) == 0,
              fmt::format("prefix_match_unit must divide block_size {} and mamba_block_size {}, found {}", o.block_size,
                          block, unit));
  }
  for (const std::string& problem : replay_problems(o)) p.require(false, problem);
  p.require(o.parking_memory_bytes >= 0,
            fmt::format("parking_memory_bytes must be at least 0, found {}", o.parking_memory_bytes));
  p.require(o.long_prefill_token_threshold >= 0, fmt::format("long_prefill_token_threshold must be at least 0 (0: no "
                                                             "limit), found {}",
                                                             o.long_prefill_token_threshold));
}

void check_options(const EngineOptions& o) {
  Problems p;
  p.require(o.num_threads >= 0 && o.num_threads <= kMostThreads,
            fmt::format("num_threads must be 0 to {}, found {}", kMostThreads, o.num_threads));
  p.require(device_problem(o.device).empty(), device_problem(o.device));
  p.require(o.gpu_memory_utilization > 0.0 && o.gpu_memory_utilization <= 1.0,
            fmt::format("gpu_memory_utilization must be above 0 and at most 1, found {}", o.gpu_memory_utilization));
  p.require(o.dtype == "float32" || o.dtype == "auto",
            fmt::format("dtype must be float32 or auto, found '{}'", o.dtype));
  p.require(
      o.max_model_len >= 0 && o.max_model_len <= kMostSequenceTokens,
      fmt::format("max_model_len must be 0 (the model's limit) to {}, found {}", kMostSequenceTokens, o.max_model_len));
  p.require(o.max_num_seqs >= 1 && o.max_num_seqs <= kMostSequences,
            fmt::format("max_num_seqs must be 1 to {}, found {}", kMostSequences, o.max_num_seqs));
  p.require(
      o.max_num_batched_tokens >= 1 && o.max_num_batched_tokens <= kMostBatchedTokens,
      fmt::format("max_num_batched_tokens must be 1 to {}, found {}", kMostBatchedTokens, o.max_num_batched_tokens));
  p.require(o.block_size >= 1 && o.block_size <= kMostBlockTokens,
            fmt::format("block_size must be 1 to {}, found {}", kMostBlockTokens, o.block_size));
  for (const std::string& problem : cache_dtype_problems(o)) p.require(false, problem);
  p.require(o.tensor_parallel_size >= 1 && o.tensor_parallel_size <= kMostShards,
            fmt::format("tensor_parallel_size must be 1 to {}, found {}", kMostShards, o.tensor_parallel_size));
  p.require(o.num_speculative_tokens >= 0 && o.num_speculative_tokens <= kMostSpeculativeTokens,
            fmt::format("num_speculative_tokens must be 0 to {}, found {}", kMostSpeculativeTokens,
                        o.num_speculative_tokens));
  p.require(o.kv_cache_memory_bytes >= 0,
            fmt::format("kv_cache_memory_bytes must be at least 0, found {}", o.kv_cache_memory_bytes));
  check_cache_options(o, p);
  p.throw_if_any();
}

void refuse_what_cannot_run(const EngineOptions& o) {
  check_forced_implementations();
  auto refuse = [](const std::string& what) {
    throw Error(ErrorCode::kUnsupported, what + " cannot run yet; it only changes what inspect shows");
  };
  if (o.tensor_parallel_size > 1) refuse(fmt::format("tensor_parallel_size {}", o.tensor_parallel_size));
  if (o.num_speculative_tokens > 0) refuse(fmt::format("num_speculative_tokens {}", o.num_speculative_tokens));
}

// The engine's pools keep checkpoints apart from running states: layers and builders see one state a sequence, whatever
// is kept for later requests.
void keep_checkpoints_apart(const EngineOptions& options, CacheConfig& cache) {
  cache.checkpoint_mode = cache.enable_prefix_caching ? options.mamba_cache_mode : MambaCacheMode::kNone;
  cache.checkpoint_block_size = checkpoint_block_of(options);
  cache.mamba_cache_mode = MambaCacheMode::kNone;
  cache.mamba_block_size.reset();
}

// Of the weights in memory: types that matrix products do not take are widened.
int64_t total_bytes(const WeightSource& weights) {
  int64_t bytes = 0;
  for (const std::string& name : weights.names()) {
    const TensorView tensor = weights.peek(name);
    const bool kept = tensor.dtype == DType::kFloat32 || tensor.dtype == DType::kBFloat16 ||
                      tensor.dtype == DType::kFloat16 || find_block_type(tensor.dtype) != nullptr;
    const int64_t more = kept ? tensor.size_bytes() : tensor.shape.count() * dtype_size(DType::kFloat32);
    if (__builtin_add_overflow(bytes, more, &bytes)) return std::numeric_limits<int64_t>::max();
  }
  return bytes;
}

void check_fits(const EngineOptions& options, const WeightSource& weights, Device& device) {
  const int64_t needed = total_bytes(weights);
  if (!device.is_host()) return check_fits_device(options, device, weights.describe(), needed);
  const int64_t available = available_memory_bytes();
  if (needed > available)
    throw make_error(
        ErrorCode::kOutOfMemory,
        "{} needs {} for its weights and {} of memory is available; use a smaller model or a machine with more memory",
        weights.describe(), format_bytes(needed), format_bytes(available));
}

// The model's limit, the user's, or the longest sequence that positions can count.
void set_max_model_len(const EngineOptions& options, const ModelInfo& info, EngineConfig& config) {
  const int64_t limit = info.max_position_embeddings > 0 ? std::min(info.max_position_embeddings, kMostSequenceTokens)
                                                         : kMostSequenceTokens;
  if (options.max_model_len > limit)
    throw make_error(ErrorCode::kInvalidArgument,
                     "max_model_len {} is more than the model's limit of {} (max_position_embeddings)",
                     options.max_model_len, limit);
  config.max_model_len = options.max_model_len > 0 ? options.max_model_len : limit;
  if (!config.cache.mamba_block_size)
    config.cache.mamba_block_size =
        config.cache.mamba_cache_mode == MambaCacheMode::kNone ? config.max_model_len : config.cache.block_size;
}

// An empty object where there is no config.json.
Json config_of(const LoadedModel& loaded) {
  return loaded.config_json.empty() ? Json(Json::Object{}) : parse_config(loaded.config_json, loaded.path);
}

// Layers are asked what they keep before they are made, for the tokens of an attention page follow from the bytes of a
// state.
void unify_pages(const EngineOptions& options, const ModelFamily& family, LoadedModel& loaded) {
  EngineConfig probe = *loaded.config;
  ModelLoadContext context{loaded.config_json, loaded.path, *loaded.weights, probe, *loaded.pool, {}, true};
  const std::unique_ptr<Model> model = family.load(context);
  set_max_model_len(options, model->info(), probe);
  unify_cache_pages(probe, options, loaded.config->cache);
}

void load_weights(const EngineOptions& options, LoadedModel& loaded, bool describe_only) {
  const ModelFamily& family = find_family(loaded.config_json, loaded.path, *loaded.weights);
  take_state_dtype_of_config(options, config_of(loaded), loaded.path, loaded.config->cache);
  if (options.cache_layout == CacheLayout::kShared) unify_pages(options, family, loaded);
  if (!describe_only) {
    loaded.device = &choose_device(options, family);
    check_fits(options, *loaded.weights, *loaded.device);
    loaded.fingerprint = model_fingerprint(loaded.config_json, *loaded.weights);
  }
  ModelLoadContext context{loaded.config_json, loaded.path,           *loaded.weights, *loaded.config,
                           *loaded.pool,       options.load_progress, describe_only,   loaded.device};
  loaded.model = family.load(context);
  set_max_model_len(options, loaded.model->info(), *loaded.config);
  check_has_scaled_states(*loaded.config);
  if (loaded.device->is_host()) choose_replay(options, *loaded.config);
}

// Loads, then lets the checkpoint go: a running model must not depend on a file that another process may truncate.
void load_and_close(const EngineOptions& options, LoadedModel& loaded) {
  load_weights(options, loaded, false);
  loaded.weights.reset();
}

// A damaged template stops who uses it, not who gives plain text.
void load_template(const ModelFolder& folder, LoadedModel& loaded) {
  try {
    loaded.chat_template = find_chat_template(folder);
  } catch (const Error& error) {
    loaded.chat_template_error = error.what();
    log_info("the chat template cannot be used: {}", loaded.chat_template_error);
  }
}

std::vector<int32_t> end_tokens(const GenerationConfig& generation, const Json& config, int64_t vocab_size) {
  std::vector<int64_t> ids = generation.eos_token_id;
  if (ids.empty()) {
    ConfigFields fields(config, "config.json");
    fields.list_or_one("eos_token_id", &ids, at_least(-1));
    fields.finish();
  }
  std::vector<int32_t> kept;
  for (int64_t id : ids)
    if (id >= 0 && id < vocab_size) kept.push_back(static_cast<int32_t>(id));
  return kept;
}

std::unique_ptr<ThreadPool> make_pool(const EngineOptions& options) {
  return std::make_unique<ThreadPool>(options.num_threads > 0 ? options.num_threads : usable_cores(),
                                      options.pin_threads);
}

// Weights that cannot be opened matter less than a config that names a family that is not known.
void open_weights_of(const ModelFolder& folder, LoadedModel& loaded) {
  const Json config = config_of(loaded);
  const bool is_named =
      !loaded.config_json.empty() && (config.find("model_type") != nullptr || config.find("architectures") != nullptr);
  if (!is_named || find_named_family(config) != nullptr) {
    loaded.weights = open_weights(folder.weights_path);
    return;
  }
  try {
    loaded.weights = open_weights(folder.weights_path);
  } catch (const Error&) {
    find_family(config, loaded.path);  // throws
    throw;
  }
}

// Weights that a scheme stores in several tensors each are read as if they were plain ones.
void present_quantized(const std::string& folder, LoadedModel& loaded) {
  const std::optional<QuantizationConfig> config = read_quantization_config(config_of(loaded), loaded.path, folder);
  if (config) loaded.weights = std::make_unique<QuantizedWeights>(std::move(loaded.weights), *config, *loaded.pool);
}

LoadedModel open_folder(const EngineOptions& options, const ModelFolder& folder) {
  LoadedModel loaded;
  loaded.config = make_engine_config(options);
  if (is_gguf_file(folder.weights_path)) {
    loaded.pool = make_pool(options);
    auto weights = std::make_unique<GgufWeights>(folder.weights_path, loaded.pool.get());
    loaded.path = folder.weights_path;
    loaded.config_json = weights->config_json();
    loaded.weights = std::move(weights);
    return loaded;
  }
  loaded.path = folder.config_path.empty() ? folder.weights_path : folder.config_path;
  if (!folder.config_path.empty()) {
    loaded.config_json = read_text_file(folder.config_path);
    parse_config(loaded.config_json, loaded.path);  // an empty file is damaged: only none at all stands for no config
  }
  open_weights_of(folder, loaded);
  if (folder.config_path.empty()) loaded.path = loaded.weights->describe();
  find_family(loaded.config_json, loaded.path, *loaded.weights);  // before anything else is read: the better message
  loaded.pool = make_pool(options);
  present_quantized(folder.folder, loaded);
  return loaded;
}

// A tokenizer of a kind that is not read leaves a GGUF file a model that takes token ids.
std::unique_ptr<Tokenizer> tokenizer_of(const ModelFolder& folder) {
  try {
    return find_tokenizer(folder);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUnsupported || !is_gguf_file(folder.tokenizer_path)) throw;
    log_warn("{}; until then the model takes token ids and no text", error.what());
    return nullptr;
  }
}

}  // namespace

std::unique_ptr<EngineConfig> make_engine_config(const EngineOptions& options) {
  check_options(options);
  auto config = std::make_unique<EngineConfig>();
  config->cache.block_size = options.block_size;
  config->cache.mamba_cache_dtype = options.mamba_cache_dtype;
  config->cache.mamba_ssm_cache_dtype = options.mamba_ssm_cache_dtype;
  config->cache.kv_cache_dtype = options.kv_cache_dtype.value_or(DType::kFloat32);
  const bool is_own_choice = options.mamba_cache_mode == MambaCacheMode::kAuto;
  config->cache.mamba_cache_mode = is_own_choice ? MambaCacheMode::kNone : options.mamba_cache_mode;
  config->cache.mamba_block_size = options.mamba_block_size;
  config->cache.prefix_match_unit = options.prefix_match_unit;
  config->cache.mamba_retention_interval = options.mamba_retention_interval;
  config->cache.enable_prefix_caching =
      options.enable_prefix_caching && options.mamba_cache_mode != MambaCacheMode::kNone;
  config->parallel.tensor_parallel_size = options.tensor_parallel_size;
  config->speculative.num_speculative_tokens = options.num_speculative_tokens;
  // Decodes take a token each, so more sequences than tokens in a step could never run together.
  config->scheduler.max_num_batched_tokens = options.max_num_batched_tokens;
  config->scheduler.long_prefill_token_threshold = options.long_prefill_token_threshold;
  config->scheduler.by_priority = options.scheduling_policy == SchedulingPolicy::kPriority;
  config->scheduler.max_num_seqs = std::min(options.max_num_seqs, options.max_num_batched_tokens);
  config->allow_bf16_products = options.dtype == "auto";
  config->deterministic = options.deterministic;
  return config;
}

void unify_cache_pages(const EngineConfig& layers, const EngineOptions& options, CacheConfig& cache) {
  const LayerSpecs specs = gather_layer_specs(layers);
  UnifyPageSizeInput rules;
  rules.block_size = options.block_size;
  rules.chunk_size = layers.mamba_chunk_size;
  // The engine's own choice of places needs no block of states, as mode none.
  const bool is_own_choice = options.mamba_cache_mode == MambaCacheMode::kAuto || !options.enable_prefix_caching;
  rules.mamba_cache_mode = is_own_choice ? MambaCacheMode::kNone : options.mamba_cache_mode;
  rules.user_mamba_block_size = options.mamba_block_size;
  rules.prefill_checkpoint_alignment = get_mamba_prefill_checkpoint_alignment(layers);
  const UnifiedPageSize unified = unify_layers(specs.states, specs.attention, rules);
  cache.block_size = unified.attention_block_size;
  cache.mamba_page_size_padded = unified.mamba_page_size_padded;
  if (unified.mamba_block_size) cache.checkpoint_block_size = *unified.mamba_block_size;
}

LoadedModel load_model(const EngineOptions& options) {
  refuse_what_cannot_run(options);
  const ModelFolder folder = resolve_model(options.model);
  LoadedModel loaded = open_folder(options, folder);
  keep_checkpoints_apart(options, loaded.config->cache);
  loaded.generation = read_generation_config(folder.generation_config_path);
  loaded.tokenizer = tokenizer_of(folder);
  load_template(folder, loaded);
  load_and_close(options, loaded);
  loaded.eos_token_ids = end_tokens(loaded.generation, config_of(loaded), loaded.model->info().vocab_size);
  const std::optional<int32_t> end = loaded.tokenizer != nullptr ? loaded.tokenizer->eos_id() : std::nullopt;
  if (loaded.eos_token_ids.empty() && loaded.config_json.empty() && end && *end < loaded.model->info().vocab_size)
    loaded.eos_token_ids.push_back(*end);
  return loaded;
}

LoadedModel load_model(const EngineOptions& options, std::string config_json, std::unique_ptr<WeightSource> weights) {
  refuse_what_cannot_run(options);
  LoadedModel loaded;
  loaded.config = make_engine_config(options);
  keep_checkpoints_apart(options, loaded.config->cache);
  loaded.path = weights->describe();
  loaded.config_json = std::move(config_json);
  loaded.weights = std::move(weights);
  loaded.pool = make_pool(options);
  present_quantized({}, loaded);
  load_and_close(options, loaded);
  loaded.eos_token_ids = end_tokens({}, config_of(loaded), loaded.model->info().vocab_size);
  return loaded;
}

ModelDescription describe_model(const EngineOptions& options) {
  LoadedModel loaded = open_folder(options, resolve_model(options.model));
  load_weights(options, loaded, true);
  return {std::move(loaded.config_json), std::move(loaded.path),   std::move(loaded.weights),
          std::move(loaded.pool),        std::move(loaded.config), std::move(loaded.model)};
}

}  // namespace coluber
