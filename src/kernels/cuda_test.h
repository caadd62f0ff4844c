// SPDX-License-Identifier: Apache-2.0
//
// What the tests of the CUDA kernels of decoding share: memory on the device for as long as a test runs, activations in
// either type, and a pool of states as the device holds them against the float32 pool of the reference.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>

#include "base/dtype.h"
#include "kernels/op_test.h"
#include "kernels/state_slots_test.h"
#include "tensor/cuda_step.h"

namespace coluber {

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
  const void* add(DType activations, const std::vector<float>& values) {
    if (activations == DType::kFloat32) return add(values);
    std::vector<uint16_t> narrow;
    for (float value : values) narrow.push_back(float_to_bfloat16(value));
    return add(narrow);
  }
  template <typename T>
  void fetch(const T* from, std::vector<T>& to) {
    device_.copy(to.data(), from, static_cast<int64_t>(to.size() * sizeof(T)));
  }
  std::vector<float> fetch(DType activations, const void* from, size_t count) {
    std::vector<float> values(count);
    if (activations == DType::kFloat32) {
      fetch(static_cast<const float*>(from), values);
      return values;
    }
    std::vector<uint16_t> narrow(count);
    fetch(static_cast<const uint16_t*>(from), narrow);
    for (size_t i = 0; i < count; ++i) values[i] = bfloat16_to_float(narrow[i]);
    return values;
  }

 private:
  CudaDevice& device_;
  std::vector<std::pair<void*, int64_t>> taken_;
};

// Floats that the activations' type holds exactly, so that both sides see the same numbers.
inline std::vector<float> random_activations(DType type, int64_t count, float low, float high, uint64_t seed) {
  std::vector<float> values = random_floats(count, low, high, seed);
  if (type == DType::kBFloat16)
    for (float& value : values) value = bfloat16_to_float(float_to_bfloat16(value));
  return values;
}

inline bool is_whole(DType type) { return type == DType::kInt16 || type == DType::kInt8; }

// Slots of `lines` of `size` elements and, for whole numbers, scales behind them. `place(line, n)` says where the
// reference's pool has the element.
struct DeviceStates {
  using Place = std::function<int64_t(int64_t line, int64_t n)>;
  int64_t lines, size, slots, scale_offset, slot_bytes;
  DType type;
  Place place;
  std::vector<std::byte> bytes;

  DeviceStates(DType type, int64_t lines, int64_t size, int64_t slots, const StatePool& from, Place place = nullptr)
      : lines(lines),
        size(size),
        slots(slots),
        scale_offset((lines * size * dtype_size(type) + 15) / 16 * 16),
        type(type),
        place(place ? std::move(place) : [size](int64_t line, int64_t n) { return line * size + n; }) {
    slot_bytes = (scale_offset + (is_whole(type) ? lines * 4 : 0) + 64 + 15) / 16 * 16;
    bytes.assign(static_cast<size_t>(slots * slot_bytes), std::byte{0xff});
    for (int64_t slot = 0; slot < slots; ++slot)
      for (int64_t line = 0; line < lines; ++line) put(slot, line, from);
  }
  // In the order of the reference's pool.
  std::vector<float> all() {
    std::vector<float> values(static_cast<size_t>(slots * lines * size));
    for (int64_t slot = 0; slot < slots; ++slot)
      for (int64_t line = 0; line < lines; ++line)
        for (int64_t n = 0; n < size; ++n)
          values[static_cast<size_t>(slot * lines * size + place(line, n))] = get(slot, line, n);
    return values;
  }

 private:
  std::byte* at(int64_t slot) { return bytes.data() + slot * slot_bytes; }
  void set_scale(int64_t slot, int64_t line, float scale) {
    std::memcpy(at(slot) + scale_offset + line * 4, &scale, sizeof scale);
  }
  void put(int64_t slot, int64_t line, const StatePool& from) {
    float largest = 0;
    for (int64_t n = 0; n < size; ++n) largest = std::max(largest, std::fabs(from.get(slot, place(line, n))));
    const float code = type == DType::kInt16 ? 32767.0f : 127.0f;
    if (is_whole(type)) set_scale(slot, line, largest / code);
    for (int64_t n = 0; n < size; ++n) {
      const int64_t i = line * size + n;
      const float value = from.get(slot, place(line, n));
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
  float get(int64_t slot, int64_t line, int64_t n) {
    const int64_t i = line * size + n;
    if (!is_whole(type)) return load_state_element(at(slot), type, i);
    float scale;
    std::memcpy(&scale, at(slot) + scale_offset + line * 4, sizeof scale);
    const float code =
        type == DType::kInt16 ? reinterpret_cast<int16_t*>(at(slot))[i] : reinterpret_cast<int8_t*>(at(slot))[i];
    return code * scale;
  }
};

// Whole numbers too are rounded on their way in and out.
inline Tolerance with_device_state_rounding(Tolerance tolerance, DType state) {
  if (state == DType::kInt16) tolerance.of_rms = 1.0 / 4096;
  if (state == DType::kInt8) tolerance.of_rms = 1.0 / 16;
  return with_state_rounding(tolerance, state);
}
inline Tolerance with_activation_rounding(Tolerance tolerance, DType activations) {
  if (activations == DType::kBFloat16) tolerance.relative = std::max(tolerance.relative, 1.0 / 128);
  return tolerance;
}

// The slots of `held` on the device, `stride` bytes apart or side by side.
class StatesOnDevice {
 public:
  StatesOnDevice(CudaDevice& device, const DeviceStates& held, int64_t stride)
      : device_(device), held_(held), stride_(stride == 0 ? held.slot_bytes : stride) {
    memory_ = static_cast<std::byte*>(device.allocate(held.slots * stride_));
  }
  ~StatesOnDevice() { device_.deallocate(memory_, held_.slots * stride_); }
  StatesOnDevice(const StatesOnDevice&) = delete;
  StatesOnDevice& operator=(const StatesOnDevice&) = delete;

  StateSlots slots(Uploads& uploads, const SlotRows& rows) {
    return {memory_,
            held_.type,
            stride_,
            uploads.add(rows.src),
            uploads.add(rows.dst),
            1,
            uploads.add(rows.has_initial_state)};
  }
  void put() {
    for (int64_t i = 0; i < held_.slots; ++i)
      device_.copy(memory_ + i * stride_, held_.bytes.data() + i * held_.slot_bytes, held_.slot_bytes);
  }
  std::vector<std::byte> get() {
    std::vector<std::byte> bytes(held_.bytes.size());
    for (int64_t i = 0; i < held_.slots; ++i)
      device_.copy(bytes.data() + i * held_.slot_bytes, memory_ + i * stride_, held_.slot_bytes);
    return bytes;
  }

 private:
  CudaDevice& device_;
  const DeviceStates& held_;
  int64_t stride_;
  std::byte* memory_ = nullptr;
};

inline constexpr int64_t kFarStride = (int64_t{1} << 34) + 4096;  // more than 2^32 elements of float32

// Rows of which nothing is held, and the same with states to hold zeros.
inline SlotRows rows_without_states() {
  SlotRows rows;
  for (int64_t length : {1, 1, 1}) rows.add(length, false, false);
  return rows;
}
inline SlotRows rows_with_states() {
  SlotRows rows;
  for (int64_t length : {1, 1, 1}) rows.add(length, true, false);
  return rows;
}
// In shuffled slots, some of them moved or fresh, among them rows without a slot.
inline SlotRows many_rows() {
  SlotRows rows;
  for (int i = 0; i < 70; ++i) {
    if (i % 7 == 3) rows.add_null(1, 0);
    rows.add(1, i % 5 != 0, i % 3 == 0);
  }
  return rows;
}
// Few, far apart.
inline SlotRows far_rows() {
  SlotRows rows;
  rows.add(1, true, true);
  rows.add(1, true, false);
  return rows;
}

inline void fill_states(StatePool& states, const SlotRows& rows, bool with_zeros) {
  for (int64_t slot : rows.filled) {
    states.fill(slot, 10 + static_cast<uint64_t>(slot));
    for (int64_t i = 0; with_zeros && i < static_cast<int64_t>(states.slot(slot).size()); ++i)
      states.set(slot, i, 0.0f);
  }
}

inline void expect_same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0);
}

// Skips, saying why, where there is no device.
class CudaTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    if (CudaLibrary::find(&why) == nullptr) GTEST_SKIP() << why;
    device_ = &cuda_device();
  }

  // Calls the library's function `name` twice and expects the same bits; what it made of the states is in `held` then,
  // and it returns what it wrote to `output`, poisoned before.
  template <typename Args>
  std::vector<float> launch(const char* name, Args args, void* Args::* output, size_t count, DeviceStates& held,
                            const SlotRows& rows, int64_t stride = 0) {
    Uploads uploads(*device_);
    StatesOnDevice states(*device_, held, stride);
    args.state = states.slots(uploads, rows);
    const auto once = [&](std::vector<std::byte>& bytes) {
      args.*output = const_cast<void*>(uploads.add(args.activations, std::vector<float>(count, 77.0f)));
      states.put();
      const auto function = device_->library().function<CudaStatus (*)(const Args*, CudaStream)>(name);
      check_cuda(function(&args, device_->stream()), name);
      device_->synchronize();
      bytes = states.get();
      return uploads.fetch(args.activations, args.*output, count);
    };
    std::vector<std::byte> first, second;
    const std::vector<float> y = once(first), again = once(second);
    expect_same_bits(y, again);
    EXPECT_TRUE(first == second) << name << ": another run, other states";
    held.bytes = std::move(first);
    return y;
  }
  // As a step of the engine does, whose arrays are all the device's already.
  template <typename Function, typename Args>
  void run(const Operation<Function>& operation, const Args& args) {
    CudaStep step(*device_);
    step.begin();
    Workspace workspace(*device_);
    operation(args, Execution{nullptr, &workspace, &step});
    device_->synchronize();
  }
  CudaDevice* device_ = nullptr;
};

}  // namespace coluber
