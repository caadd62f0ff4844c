// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/cublas_lt_cuda.h"

#include <cublasLt.h>
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <tuple>

namespace coluber {
namespace {

constexpr int64_t kScratchBytes = int64_t{32} << 20;  // that an algorithm may ask for
constexpr int64_t kScratchAlignment = 256;
// That is looked for in an address: all that vector loads need. Scratch memory lies anyhow above it, and must not make
// the difference between two algorithms.
constexpr uint32_t kMostAlignment = 16;
constexpr size_t kMostPlans = 4096;  // prompts are cut in chunks of every length

thread_local char last_fault[160];

CudaStatus fault_of(const char* call, cublasStatus_t status) {
  std::snprintf(last_fault, sizeof last_fault, "cuBLASLt's %s failed with status %d", call, static_cast<int>(status));
  return last_fault;
}

struct Functions {
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtGetVersion) version = nullptr;
  decltype(&cublasLtMatmul) multiply = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) choose = nullptr;
  decltype(&cublasLtMatmulDescCreate) create_product = nullptr;
  decltype(&cublasLtMatmulDescDestroy) destroy_product = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) set_product = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) create_layout = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) destroy_layout = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) create_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) destroy_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference = nullptr;

  // The name of the first function that is missing; null where all are there.
  const char* find(void* library) {
    const char* missing = nullptr;
    const auto look = [&](const char* name, auto* function) {
      *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(::dlsym(library, name));
      if (*function == nullptr && missing == nullptr) missing = name;
    };
    look("cublasLtCreate", &create);
    look("cublasLtGetVersion", &version);
    look("cublasLtMatmul", &multiply);
    look("cublasLtMatmulAlgoGetHeuristic", &choose);
    look("cublasLtMatmulDescCreate", &create_product);
    look("cublasLtMatmulDescDestroy", &destroy_product);
    look("cublasLtMatmulDescSetAttribute", &set_product);
    look("cublasLtMatrixLayoutCreate", &create_layout);
    look("cublasLtMatrixLayoutDestroy", &destroy_layout);
    look("cublasLtMatmulPreferenceCreate", &create_preference);
    look("cublasLtMatmulPreferenceDestroy", &destroy_preference);
    look("cublasLtMatmulPreferenceSetAttribute", &set_preference);
    return missing;
  }
};

struct Library {
  Functions call;
  bool runs = false;
  std::string note;

  Library() {
    // Structs are those of the header: another major version may have others.
    const std::string name = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);
    const char* named = std::getenv("COLUBER_CUBLASLT_LIBRARY");
    const bool is_named = named != nullptr && *named != '\0';
    void* library = ::dlopen(is_named ? named : name.c_str(), RTLD_NOW | RTLD_LOCAL);
    const char* found_not = library == nullptr ? ::dlerror() : nullptr;
    const std::string why = found_not != nullptr ? found_not : "";
    if (library == nullptr && !is_named)
      library = ::dlopen(("/usr/local/cuda/lib64/" + name).c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      note = "float32 multiply-adds: cuBLASLt cannot be opened (" + why +
             "); install it, or name it in COLUBER_CUBLASLT_LIBRARY";
      return;
    }
    if (const char* missing = call.find(library); missing != nullptr) {
      note = std::string("float32 multiply-adds: cuBLASLt has no ") + missing;
      return;
    }
    const size_t version = call.version();
    runs = version / 10000 == CUBLAS_VER_MAJOR;
    note = (runs ? "cuBLASLt " : "float32 multiply-adds: cuBLASLt is of version ") + std::to_string(version / 10000) +
           "." + std::to_string(version / 100 % 100) + (runs ? "" : ", expected " + std::to_string(CUBLAS_VER_MAJOR));
  }
};

const Library& library() {
  static const Library opened;
  return opened;
}

uint32_t alignment_of(const void* address) {
  const auto bits = reinterpret_cast<uintptr_t>(address) | kMostAlignment;
  return static_cast<uint32_t>(bits & (~bits + 1));
}

// What an algorithm is chosen for.
struct PlanKey {
  int device;
  NarrowProduct product;
  uint32_t a_alignment, w_alignment, c_alignment, bias_alignment;

  PlanKey(int device, const NarrowProduct& p)
      : device(device),
        product(p),
        a_alignment(alignment_of(p.a)),
        w_alignment(alignment_of(p.w)),
        c_alignment(alignment_of(p.c)),
        bias_alignment(p.bias != nullptr ? alignment_of(p.bias) : 0) {}
  auto sizes() const {
    return std::tuple(device, static_cast<int>(product.dtype), product.m, product.n, product.k, product.ldc,
                      product.accumulate, a_alignment, w_alignment, c_alignment, bias_alignment);
  }
  bool operator<(const PlanKey& other) const { return sizes() < other.sizes(); }
};

// How a product is computed. cuBLASLt counts by columns: it sees C^T [N, M] = W A^T.
class Plan {
 public:
  Plan(const Functions& call, cublasLtHandle_t handle, const PlanKey& key) : call_(call) {
    if (make(key) != CUBLAS_STATUS_SUCCESS || choose(handle, key) != CUBLAS_STATUS_SUCCESS) return;
    runs_ = true;
  }
  ~Plan() {
    for (const cublasLtMatrixLayout_t layout : {w_, a_, c_})
      if (layout != nullptr) call_.destroy_layout(layout);
    if (product_ != nullptr) call_.destroy_product(product_);
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  bool runs() const { return runs_; }
  CudaStatus launch(cublasLtHandle_t handle, const NarrowProduct& p, const CudaLaunch& launch) {
    void* scratch = nullptr;
    if (scratch_bytes_ > 0) {
      scratch = launch.take(launch.workspace, static_cast<int64_t>(scratch_bytes_) + kScratchAlignment);
      if (scratch == nullptr) return "no scratch memory for cuBLASLt (out of memory)";
      const auto address = reinterpret_cast<uintptr_t>(scratch) + kScratchAlignment - 1;
      scratch = reinterpret_cast<void*>(address - address % kScratchAlignment);
    }
    if (p.bias != nullptr) {
      const cublasStatus_t set = call_.set_product(product_, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p.bias, sizeof p.bias);
      if (set != CUBLAS_STATUS_SUCCESS) return fault_of("cublasLtMatmulDescSetAttribute", set);
    }
    const float one = 1.0f, old = p.accumulate ? 1.0f : 0.0f;
    const cublasStatus_t status =
        call_.multiply(handle, product_, &one, p.w, w_, p.a, a_, &old, p.c, c_, p.c, c_, &algorithm_, scratch,
                       scratch_bytes_, static_cast<cudaStream_t>(launch.stream));
    return status == CUBLAS_STATUS_SUCCESS ? nullptr : fault_of("cublasLtMatmul", status);
  }

 private:
  cublasStatus_t make(const PlanKey& key) {
    const NarrowProduct& p = key.product;
    const cudaDataType_t type = p.dtype == DType::kBFloat16 ? CUDA_R_16BF : CUDA_R_16F;
    const auto m = static_cast<uint64_t>(p.m), n = static_cast<uint64_t>(p.n), k = static_cast<uint64_t>(p.k);
    cublasStatus_t status = call_.create_product(&product_, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    const auto then = [&status](auto&& next) {
      if (status == CUBLAS_STATUS_SUCCESS) status = next();
    };
    const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
      then([&] { return call_.set_product(product_, attribute, &value, sizeof value); });
    };
    set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
    if (p.bias != nullptr) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
    }
    then([&] { return call_.create_layout(&w_, type, k, n, p.k); });
    then([&] { return call_.create_layout(&a_, type, k, m, p.k); });
    then([&] { return call_.create_layout(&c_, CUDA_R_32F, n, m, p.ldc); });
    return status;
  }
  cublasStatus_t choose(cublasLtHandle_t handle, const PlanKey& key) {
    cublasLtMatmulPreference_t preference = nullptr;
    cublasStatus_t status = call_.create_preference(&preference);
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      if (status == CUBLAS_STATUS_SUCCESS) status = call_.set_preference(preference, attribute, &value, sizeof value);
    };
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<size_t>(kScratchBytes));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.w_alignment);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.a_alignment);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.c_alignment);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.c_alignment);
    cublasLtMatmulHeuristicResult_t best = {};
    int found = 0;
    if (status == CUBLAS_STATUS_SUCCESS)
      status = call_.choose(handle, product_, w_, a_, c_, c_, preference, 1, &best, &found);
    if (preference != nullptr) call_.destroy_preference(preference);
    if (status == CUBLAS_STATUS_SUCCESS) status = found > 0 ? best.state : CUBLAS_STATUS_NOT_SUPPORTED;
    algorithm_ = best.algo;
    scratch_bytes_ = best.workspaceSize;
    return status;
  }

  const Functions& call_;
  cublasLtMatmulDesc_t product_ = nullptr;
  cublasLtMatrixLayout_t w_ = nullptr, a_ = nullptr, c_ = nullptr;
  cublasLtMatmulAlgo_t algorithm_ = {};
  size_t scratch_bytes_ = 0;
  bool runs_ = false;
};

struct Plans {
  std::mutex mutex;
  std::map<int, cublasLtHandle_t> handles;  // by device; null: cuBLASLt does not run there
  std::map<PlanKey, Plan> plans;
};
Plans& plans() {
  static auto& instance = *new Plans();  // the driver may be gone before static objects are
  return instance;
}

cublasLtHandle_t handle_of(Plans& all, int device) {
  const auto known = all.handles.find(device);
  if (known != all.handles.end()) return known->second;
  cublasLtHandle_t handle = nullptr;
  if (library().call.create(&handle) != CUBLAS_STATUS_SUCCESS) handle = nullptr;
  return all.handles[device] = handle;
}

}  // namespace

bool cublas_lt_runs() {
  if (!library().runs) return false;
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return false;
  const std::lock_guard lock(plans().mutex);
  return handle_of(plans(), device) != nullptr;
}

CudaStatus multiply_by_cublas_lt(const NarrowProduct& product, const CudaLaunch& launch, bool* done) {
  *done = false;
  int device = 0;
  if (!library().runs || cudaGetDevice(&device) != cudaSuccess) return nullptr;
  Plans& all = plans();
  const std::lock_guard lock(all.mutex);
  const cublasLtHandle_t handle = handle_of(all, device);
  if (handle == nullptr) return nullptr;
  if (all.plans.size() >= kMostPlans) all.plans.clear();
  const PlanKey key(device, product);
  Plan& plan = all.plans.try_emplace(key, library().call, handle, key).first->second;
  if (!plan.runs()) return nullptr;
  *done = true;
  return plan.launch(handle, product, launch);
}

}  // namespace coluber

extern "C" __attribute__((visibility("default"))) const char* coluber_cuda_products_note() {
  return coluber::library().note.c_str();
}
