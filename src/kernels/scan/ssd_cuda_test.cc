// SPDX-License-Identifier: Apache-2.0
#include "kernels/scan/ssd_cuda.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/dtype.h"
#include "kernels/op_test.h"
#include "kernels/scan/ssd.h"
#include "kernels/state_slots_test.h"
#include "tensor/cuda_device.h"

namespace coluber {
namespace {

// Copies of host memory on the device, given back together.
class Uploads {
 public:
  explicit Uploads(CudaDevice& device) : device_(device) {}
  ~Uploads() {
    for (auto& [memory, bytes] : taken_) device_.deallocate(memory, bytes);
  }
  template <typename T>
  T* add(const std::vector<T>& values) {
    const auto bytes = static_cast<int64_t>(values.size() * sizeof(T));
    void* memory = device_.allocate(bytes);
    taken_.emplace_back(memory, bytes);
    device_.copy(memory, values.data(), bytes);
    return static_cast<T*>(memory);
  }
  template <typename T>
  void fetch(const T* from, std::vector<T>& to) {
    device_.copy(to.data(), from, static_cast<int64_t>(to.size() * sizeof(T)));
  }

 private:
  CudaDevice& device_;
  std::vector<std::pair<void*, int64_t>> taken_;
};

uint16_t to_bf16(float v) { return float_to_bfloat16(v); }

struct Problem {
  int64_t heads, head_dim, groups, state_size;
  DType activations = DType::kFloat32, state = DType::kFloat32;
  bool skip = true;
};

// Inputs as floats that the activations' type holds exactly, so that both sides see the same numbers.
struct Inputs {
  std::vector<float> x, dt, b, c, bias, a, d;

  Inputs(const Problem& p, int64_t rows)
      : x(random_floats(rows * p.heads * p.head_dim, -1, 1, 1)),
        dt(random_floats(rows * p.heads, -5, 3, 2)),
        b(random_floats(rows * p.groups * p.state_size, -1, 1, 3)),
        c(random_floats(rows * p.groups * p.state_size, -1, 1, 4)),
        bias(random_floats(p.heads, -1, 1, 5)),
        a(random_floats(p.heads, -4, -0.01f, 6)),
        d(random_floats(p.heads, -1, 1, 7)) {
    if (p.activations == DType::kFloat32) return;
    for (std::vector<float>* values : {&x, &dt, &b, &c})
      for (float& value : *values) value = bfloat16_to_float(to_bf16(value));
  }
};

const void* upload(Uploads& uploads, DType type, const std::vector<float>& values) {
  if (type == DType::kFloat32) return uploads.add(values);
  std::vector<uint16_t> narrow(values.size());
  for (size_t i = 0; i < values.size(); ++i) narrow[i] = to_bf16(values[i]);
  return uploads.add(narrow);
}

// What the reference makes of the rows: y and the states, float32.
struct Expected {
  std::vector<float> y, states;
};

Expected reference(const Problem& p, const Inputs& in, const SlotRows& rows, StatePool& states) {
  ThreadPool pool(1);
  Workspace workspace;
  Expected out;
  out.y.assign(static_cast<size_t>(rows.rows() * p.heads * p.head_dim), 77.0f);
  SsdArgs args;
  args.x = in.x.data();
  args.x_stride = args.y_stride = p.heads * p.head_dim;
  args.dt = in.dt.data();
  args.dt_stride = p.heads;
  args.b = in.b.data();
  args.c = in.c.data();
  args.b_stride = args.c_stride = p.groups * p.state_size;
  args.dt_bias = p.skip ? in.bias.data() : nullptr;
  args.a = in.a.data();
  args.d = p.skip ? in.d.data() : nullptr;
  args.y = out.y.data();
  args.state = states.slots(rows.src.data(), rows.dst.data(), rows.has_initial_state.data());
  args.rows = rows.rows();
  args.num_heads = p.heads;
  args.head_dim = p.head_dim;
  args.num_groups = p.groups;
  args.state_size = p.state_size;
  ssd_state_update().reference().function(args, pool, workspace);
  out.states = states.all();
  return out;
}

bool is_whole(DType type) { return type == DType::kInt16 || type == DType::kInt8; }

// A pool of states as the device holds them: slots of elements and, for whole numbers, scales behind them.
struct DeviceStates {
  int64_t elements, lines, state_size, slot_bytes, scale_offset;
  DType type;
  std::vector<std::byte> bytes;

  DeviceStates(const Problem& p, const StatePool& from, int64_t slots)
      : elements(p.heads * p.head_dim * p.state_size),
        lines(p.heads * p.head_dim),
        state_size(p.state_size),
        scale_offset((elements * dtype_size(p.state) + 15) / 16 * 16),
        type(p.state) {
    slot_bytes = scale_offset + (is_whole(type) ? lines * 4 : 0) + 64;
    slot_bytes = (slot_bytes + 15) / 16 * 16;
    bytes.assign(static_cast<size_t>(slots * slot_bytes), std::byte{0xff});
    for (int64_t slot = 0; slot < slots; ++slot)
      for (int64_t line = 0; line < lines; ++line) put(slot, line, from);
  }
  std::byte* at(int64_t slot) { return bytes.data() + slot * slot_bytes; }
  void put(int64_t slot, int64_t line, const StatePool& from) {
    float largest = 0;
    for (int64_t n = 0; n < state_size; ++n)
      largest = std::max(largest, std::fabs(from.get(slot, line * state_size + n)));
    const float code = type == DType::kInt16 ? 32767.0f : 127.0f;
    if (is_whole(type)) set_scale(slot, line, largest / code);
    for (int64_t n = 0; n < state_size; ++n) {
      const int64_t i = line * state_size + n;
      const float value = from.get(slot, i);
      if (!is_whole(type)) {
        store_state_element(at(slot), type, i, value);
      } else if (std::isnan(value)) {
        set_scale(slot, line, value);
      } else {
        const auto whole = static_cast<int32_t>(std::lrint(largest > 0 ? value * code / largest : 0.0f));
        if (type == DType::kInt16) reinterpret_cast<int16_t*>(at(slot))[i] = static_cast<int16_t>(whole);
        if (type == DType::kInt8) reinterpret_cast<int8_t*>(at(slot))[i] = static_cast<int8_t>(whole);
      }
    }
  }
  void set_scale(int64_t slot, int64_t line, float scale) {
    std::memcpy(at(slot) + scale_offset + line * 4, &scale, sizeof scale);
  }
  float get(int64_t slot, int64_t i) {
    if (!is_whole(type)) return load_state_element(at(slot), type, i);
    float scale;
    std::memcpy(&scale, at(slot) + scale_offset + i / state_size * 4, sizeof scale);
    const float code =
        type == DType::kInt16 ? reinterpret_cast<int16_t*>(at(slot))[i] : reinterpret_cast<int8_t*>(at(slot))[i];
    return code * scale;
  }
  std::vector<float> all(int64_t slots) {
    std::vector<float> values;
    for (int64_t slot = 0; slot < slots; ++slot)
      for (int64_t i = 0; i < elements; ++i) values.push_back(get(slot, i));
    return values;
  }
};

// A state is rounded once on its way in and once on its way out.
Tolerance tolerance_of(DType state) {
  Tolerance tolerance = with_state_rounding(kSsdCudaTolerance, state);
  if (state == DType::kInt16) tolerance.of_rms = 1.0 / 4096;
  if (state == DType::kInt8) tolerance.of_rms = 1.0 / 16;
  return tolerance;
}

class SsdCuda : public testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    if (CudaLibrary::find(&why) == nullptr) GTEST_SKIP() << why;
    device_ = &cuda_device();
    update_ = device_->library().function<SsdCudaFunction>(kSsdStateUpdateCuda);
  }

  void expect_agrees(const Problem& p, const SlotRows& rows) {
    const Inputs in(p, rows.rows());
    StatePool states(rows.slots, p.heads * p.head_dim * p.state_size, DType::kFloat32);
    for (int64_t slot : rows.filled) states.fill(slot, 10 + static_cast<uint64_t>(slot));
    DeviceStates held(p, states, rows.slots);
    const Expected want = reference(p, in, rows, states);

    Uploads uploads(*device_);
    SsdCudaArgs args;
    args.activations = p.activations;
    args.x = upload(uploads, p.activations, in.x);
    args.x_stride = args.y_stride = p.heads * p.head_dim;
    args.dt = upload(uploads, p.activations, in.dt);
    args.dt_stride = p.heads;
    args.b = upload(uploads, p.activations, in.b);
    args.c = upload(uploads, p.activations, in.c);
    args.b_stride = args.c_stride = p.groups * p.state_size;
    args.dt_bias = p.skip ? uploads.add(in.bias) : nullptr;
    args.a = uploads.add(in.a);
    args.d = p.skip ? uploads.add(in.d) : nullptr;
    std::vector<float> y(want.y.size(), 77.0f);
    std::vector<uint16_t> narrow(want.y.size(), 0x7fff);
    args.y = p.activations == DType::kFloat32 ? static_cast<void*>(uploads.add(y)) : uploads.add(narrow);
    std::byte* pool = uploads.add(held.bytes);
    args.state = {pool,
                  p.state,
                  held.slot_bytes,
                  uploads.add(rows.src),
                  uploads.add(rows.dst),
                  1,
                  uploads.add(rows.has_initial_state)};
    args.scale_offset_bytes = held.scale_offset;
    args.rows = rows.rows();
    args.num_heads = p.heads;
    args.head_dim = p.head_dim;
    args.num_groups = p.groups;
    args.state_size = p.state_size;
    check_cuda(update_(&args, device_->stream()), "update states");
    device_->synchronize();
    uploads.fetch(pool, held.bytes);
    if (p.activations == DType::kFloat32) {
      uploads.fetch(static_cast<const float*>(args.y), y);
    } else {
      uploads.fetch(static_cast<const uint16_t*>(args.y), narrow);
      for (size_t i = 0; i < y.size(); ++i) y[i] = bfloat16_to_float(narrow[i]);
    }
    Tolerance tolerance = tolerance_of(p.state);
    expect_close(held.all(rows.slots), want.states, tolerance, "states");
    if (p.activations == DType::kBFloat16) tolerance.relative = std::max(tolerance.relative, 1.0 / 128);
    expect_close(y, want.y, tolerance, "y");
  }

  CudaDevice* device_ = nullptr;
  SsdCudaFunction update_ = nullptr;
};

TEST_F(SsdCuda, AgreesWithTheReferenceOnEveryKindOfRow) {
  for (DType activations : {DType::kFloat32, DType::kBFloat16}) {
    for (DType state : {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kInt16, DType::kInt8}) {
      for (Problem p : {Problem{8, 64, 2, 128}, Problem{3, 20, 3, 16}, Problem{4, 33, 1, 32}, Problem{6, 40, 2, 64},
                        Problem{4, 64, 1, 256}, Problem{5, 7, 1, 33}, Problem{2, 16, 2, 10}, Problem{2, 16, 1, 1000}}) {
        p.activations = activations;
        p.state = state;
        p.skip = p.heads % 2 == 0;
        SCOPED_TRACE(testing::Message() << p.heads << " heads of " << p.head_dim << ", state " << p.state_size << ", "
                                        << dtype_name(activations) << ", " << dtype_name(state));
        expect_agrees(p, SlotRows::decode());
      }
    }
  }
}

TEST_F(SsdCuda, ManyRowsInShuffledSlots) {
  SlotRows rows;
  for (int i = 0; i < 70; ++i) rows.add(1, i % 5 != 0, i % 3 == 0);
  expect_agrees({16, 64, 4, 128, DType::kBFloat16, DType::kFloat32}, rows);
}

}  // namespace
}  // namespace coluber
