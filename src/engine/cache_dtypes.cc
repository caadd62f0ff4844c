// SPDX-License-Identifier: Apache-2.0
#include "engine/cache_dtypes.h"

#include <optional>

#include "base/dtype.h"
#include "base/error.h"
#include "coluber/mamba_base.h"
#include "formats/hf_config.h"
#include "layers/paged_kv_cache.h"

namespace coluber {
namespace {

bool is_float(DType dtype) { return dtype == DType::kFloat32 || dtype == DType::kBFloat16 || dtype == DType::kFloat16; }

bool is_whole_number(DType dtype) { return dtype == DType::kInt16 || dtype == DType::kInt8; }

constexpr const char* kStateDTypes = "float32, bfloat16, float16, int16 or int8";

std::string not_deterministic(const char* option, DType dtype) {
  return fmt::format(
      "deterministic promises the same bits however a prompt is cut, and {} {} rounds states where steps end; leave it "
      "at float32",
      option, dtype_name(dtype));
}

// The words of config.json, of all places that say it the first.
std::optional<std::string> state_dtype_in(ConfigFields& fields) {
  std::optional<std::string> name;
  fields.alias("mamba_ssm_cache_dtype", {"mamba_ssm_dtype"}).optional("mamba_ssm_cache_dtype", &name);
  return name;
}

}  // namespace

std::vector<std::string> cache_dtype_problems(const EngineOptions& o) {
  std::vector<std::string> problems;
  const DType conv = o.mamba_cache_dtype.value_or(DType::kFloat32);
  const DType states = o.mamba_ssm_cache_dtype.value_or(DType::kFloat32);
  const DType pages = o.kv_cache_dtype.value_or(DType::kFloat32);
  if (!is_float(conv))
    problems.push_back(
        fmt::format("mamba_cache_dtype must be float32, bfloat16 or float16, found {}", dtype_name(conv)));
  if (!is_float(states) && !is_whole_number(states))
    problems.push_back(fmt::format("mamba_ssm_cache_dtype must be {}, found {}", kStateDTypes, dtype_name(states)));
  if (!is_page_dtype(pages))
    problems.push_back(fmt::format(
        "kv_cache_dtype must be float32, bfloat16, float16, float8_e4m3fn (fp8) or int8, found {}", dtype_name(pages)));
  // Pages are rounded a token at a time, states where a step ends: other chunks, other roundings.
  if (o.deterministic && conv != DType::kFloat32) problems.push_back(not_deterministic("mamba_cache_dtype", conv));
  if (o.deterministic && states != DType::kFloat32)
    problems.push_back(not_deterministic("mamba_ssm_cache_dtype", states));
  return problems;
}

void take_state_dtype_of_config(const EngineOptions& options, const Json& config, const std::string& path,
                                CacheConfig& cache) {
  if (options.mamba_ssm_cache_dtype) return;
  ConfigFields fields(config, path);
  std::optional<std::string> name = state_dtype_in(fields);
  if (const Json* text = fields.find("text_config"); !name && text != nullptr && text->is_object()) {
    ConfigFields nested = fields.nested("text_config");
    name = state_dtype_in(nested);
  }
  if (name && *name != "auto") {
    const std::optional<DType> dtype = parse_dtype(*name);
    fields.check(dtype && (is_float(*dtype) || is_whole_number(*dtype)),
                 fmt::format("mamba_ssm_cache_dtype is '{}', expected {}; choose one with --mamba-ssm-cache-dtype",
                             *name, kStateDTypes));
    if (dtype && !options.deterministic) cache.mamba_ssm_cache_dtype = dtype;
  }
  fields.finish();
}

void check_has_scaled_states(const EngineConfig& config) {
  const DType dtype = config.cache.mamba_ssm_cache_dtype.value_or(DType::kFloat32);
  if (!is_whole_number(dtype)) return;
  for (const AttentionLayerBase* layer : config.layers) {
    const auto* recurrent = dynamic_cast<const MambaBase*>(layer);
    if (recurrent == nullptr) continue;
    for (const DeclaredState& state : recurrent->declared_states())
      if (state.scales >= 0) return;
  }
  throw make_error(
      ErrorCode::kInvalidConfig,
      "mamba_ssm_cache_dtype is {}, and no layer of this model keeps a recurrent state of that kind; choose float32",
      dtype_name(dtype));
}

}  // namespace coluber
