// SPDX-License-Identifier: Apache-2.0
#include "engine/device_choice.h"

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "engine/host_memory.h"
#include "kernels/gemm/cublas_lt_cuda.h"
#include "tensor/cuda_device.h"

namespace coluber {
namespace {

// Of a device's memory, what the scratch of a step may need beside weights and cache.
constexpr int64_t kStepPart = 32;

std::string names_of_families_on_cuda() {
  std::string names;
  for (const std::string& name : ModelRegistry::instance().names())
    if (ModelRegistry::instance().find(name)->runs_on_cuda) names += (names.empty() ? "" : ", ") + name;
  return names;
}

bool is_whole(const std::optional<DType>& dtype) {
  return dtype && *dtype != DType::kFloat32 && *dtype != DType::kBFloat16 && *dtype != DType::kFloat16;
}

// Why this model cannot run on a CUDA device as it is asked to; empty where it can.
std::string hindrance(const EngineOptions& options, const ModelFamily& family) {
  if (!family.runs_on_cuda)
    return fmt::format("models of type {} run on the CPU alone (on CUDA devices: {})", family.model_type,
                       names_of_families_on_cuda());
  if (options.use_replayssm == ReplayMode::kOn) return "use_replayssm runs on the CPU alone";
  if (is_whole(options.mamba_ssm_cache_dtype) || is_whole(options.mamba_cache_dtype) ||
      is_whole(options.kv_cache_dtype))
    return "states and pages of bytes run on the CPU alone; keep them as float32, bfloat16 or float16";
  return {};
}

int64_t usable_bytes(const EngineOptions& options, const CudaDevice& device) {
  return static_cast<int64_t>(options.gpu_memory_utilization * static_cast<double>(device.info().total_bytes));
}

CudaDevice& chosen(CudaDevice& device, const EngineOptions& options) {
  void* note = device.library().find_symbol(kProductsNote);
  if (note != nullptr && options.dtype == "auto" && !options.deterministic)
    log_info("{}: 16-bit weights are multiplied by {}", device.name(), reinterpret_cast<ProductsNoteFunction>(note)());
  return device;
}

}  // namespace

std::string device_problem(std::string_view name) {
  if (name == "auto" || name == "cpu" || cuda_ordinal(name)) return {};
  return fmt::format("device must be auto, cpu, cuda or cuda:N, found '{}'", name);
}

Device& choose_device(const EngineOptions& options, const ModelFamily& family) {
  if (options.device == "cpu") return cpu_device();
  const std::string why = hindrance(options, family);
  if (options.device != "auto") {
    CudaDevice& device = cuda_device(cuda_ordinal(options.device).value_or(0));
    if (!why.empty()) throw make_error(ErrorCode::kUnsupported, "device {}: {}", options.device, why);
    return chosen(device, options);
  }
  std::string missing;
  if (CudaLibrary::find(&missing) == nullptr) {
    log_debug("runs on the CPU: {}", missing);
    return cpu_device();
  }
  if (!why.empty()) {
    log_info("runs on the CPU: {}", why);
    return cpu_device();
  }
  return chosen(cuda_device(), options);
}

void check_fits_device(const EngineOptions& options, Device& device, const std::string& weights, int64_t bytes) {
  auto* cuda = dynamic_cast<CudaDevice*>(&device);
  if (cuda == nullptr) return;
  const int64_t available = std::min(usable_bytes(options, *cuda), cuda->free_bytes());
  if (bytes <= available) return;
  throw make_error(ErrorCode::kOutOfMemory,
                   "{} needs {} for its weights on {}, and {} may be used there (of {}; {} are free, and "
                   "gpu_memory_utilization is {}); use a smaller model or --device cpu",
                   weights, format_bytes(bytes), cuda->name(), format_bytes(available),
                   format_bytes(cuda->info().total_bytes), format_bytes(cuda->free_bytes()),
                   options.gpu_memory_utilization);
}

int64_t device_cache_bytes(const EngineOptions& options, Device& device) {
  auto* cuda = dynamic_cast<CudaDevice*>(&device);
  COLUBER_CHECK(cuda != nullptr, "device {} is no CUDA device", device.name());
  const int64_t free = cuda->free_bytes(), total = cuda->info().total_bytes;
  const int64_t left = free - (total - usable_bytes(options, *cuda)) - total / kStepPart;
  if (options.kv_cache_memory_bytes > free)
    throw make_error(ErrorCode::kOutOfMemory, "kv_cache_memory_bytes is {}, and {} are free on {}; ask for less",
                     format_bytes(options.kv_cache_memory_bytes), format_bytes(free), cuda->name());
  return options.kv_cache_memory_bytes > 0 ? options.kv_cache_memory_bytes : std::max<int64_t>(left, 0);
}

}  // namespace coluber
