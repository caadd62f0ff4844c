// SPDX-License-Identifier: Apache-2.0
//
// Which device a model runs on, from what was asked for, what there is and what the model's family can. Private to the
// engine folder.
#pragma once

#include <string>
#include <string_view>

#include "coluber/engine.h"
#include "coluber/registry.h"
#include "tensor/device.h"

namespace coluber {

// "auto", "cpu", "cuda" or "cuda:N"; empty where `name` is one of these, else what is wrong with it.
std::string device_problem(std::string_view name);
// Throws Error(kUnsupported) where a CUDA device is asked for and there is none, or the family or an option runs on
// the CPU alone; `auto` then takes the CPU.
Device& choose_device(const EngineOptions& options, const ModelFamily& family);
// Throws Error(kOutOfMemory) with the sizes where the device has no room for weights of so many bytes.
void check_fits_device(const EngineOptions& options, Device& device, const std::string& weights, int64_t bytes);
// What states and attention pages may take of the device's memory once the weights are there, as the options say.
int64_t device_cache_bytes(const EngineOptions& options, Device& device);

}  // namespace coluber
