# SPDX-License-Identifier: Apache-2.0
# Coluber. `make run` and `make test` do everything on a fresh Debian 12 machine: they install what is missing, build and go.
#
#   make run            build, then stream text from the built-in model (PROMPT="..." for another beginning, SEED=2 for another end)
#   make test           build, then all tests that need no GPU
#   make build          the release build only, in build/
#   make bench          speed of the built-in model's big sisters on this machine
#   make install        into PREFIX (default /usr/local)
#   make format lint    formatter and linters
#   make test-sanitize  the tests under ASan+UBSan and TSan
#   make fuzz           every libFuzzer target for FUZZ_SECONDS seconds
#   make soak           random traffic over the engine for SOAK_SECONDS seconds
#   make soak-server    the same over the server, until SOAK_REQUESTS answers or SOAK_SECONDS seconds
#   make batch-mixed    thousands of mixed requests by `coluber batch` beside each alone, over families or MODELS: a table
#   make gpu-bundle     the programs that a machine with a GPU needs to test and time the CUDA kernels, in build-cuda/gpu-bundle.tar.xz
#   make test-gpu       that bundle's tests on this machine's GPU; without one it says so
#   make conformance    the contract's rules over CASES
PREFIX ?= /usr/local
BUILD ?= build
JOBS ?= $(shell nproc)
export PROMPT ?= Once upon a time there was a small
SEED ?= 1
CASES ?= ../shared/cases
FUZZ_SECONDS ?= 60
SOAK_SECONDS ?= 3600
SOAK_REQUESTS ?= 1000000
GPU_BUNDLE ?= build-cuda/gpu-bundle.tar.xz
CLI = $(BUILD)/coluber

.PHONY: build run test bench install format lint test-sanitize fuzz soak soak-server batch-mixed conformance gpu-bundle test-gpu setup setup-dev clean

$(BUILD)/.setup: tools/setup.sh
	@mkdir -p $(BUILD)
	@tools/setup.sh build
	@touch $@

$(BUILD)/.setup-test: tools/setup.sh
	@mkdir -p $(BUILD)
	@tools/setup.sh test
	@touch $@ $(BUILD)/.setup

$(BUILD)-dev/.setup: tools/setup.sh
	@mkdir -p $(BUILD)-dev
	@tools/setup.sh dev
	@touch $@

# Order-only: a newer stamp (of `make test`, say) is no reason to configure again; CMake itself watches its files.
$(BUILD)/build.ninja: | $(BUILD)/.setup
	@echo "configuring"
	@cmake --preset release -B $(BUILD) >$(BUILD)/configure.log 2>&1 || { cat $(BUILD)/configure.log; exit 1; }

# The program alone, for `make run`: no tests, so that a newcomer waits as little as can be.
build: $(BUILD)/build.ninja
	@cmake --build $(BUILD) -j $(JOBS) --target coluber_cli coluber_conformance

# Where the program is there already, what ninja says of its work would only stand before the text.
run: $(BUILD)/build.ninja
	@cmake --build $(BUILD) -j $(JOBS) --target coluber_cli $$([ ! -x $(CLI) ] || echo -- --quiet)
	@printf '%s' "$$PROMPT"
	@$(CLI) run --raw -p "$$PROMPT" -n 60 --seed $(SEED)

test: $(BUILD)/.setup-test
	@cmake --preset release -B $(BUILD) -DCOLUBER_TESTS=ON >$(BUILD)/configure.log 2>&1 || { cat $(BUILD)/configure.log; exit 1; }
	@cmake --build $(BUILD) -j $(JOBS)
	@ctest --test-dir $(BUILD) --output-on-failure --no-tests=error

bench: build
	@$(CLI) bench --synthetic mamba2-370m
	@$(CLI) bench --synthetic mamba-130m

install: build
	@cmake --build $(BUILD) -j $(JOBS) --target coluber_cli coluber_conformance coluber_archive
	@cmake --install $(BUILD) --prefix $(PREFIX)

format: $(BUILD)-dev/.setup
	@tools/format.sh

lint: $(BUILD)-dev/.setup
	@python3 tools/check_layers.py
	@tools/format.sh --check
	@tools/lint.sh

test-sanitize: $(BUILD)-dev/.setup
	@tools/sanitize.sh

fuzz: $(BUILD)-dev/.setup
	@tools/fuzz.sh $(FUZZ_SECONDS)

soak: $(BUILD)/.setup-test
	@cmake --preset release -B $(BUILD) -DCOLUBER_TESTS=ON >$(BUILD)/configure.log 2>&1 || { cat $(BUILD)/configure.log; exit 1; }
	@cmake --build $(BUILD) -j $(JOBS) --target engine_system_tests
	@COLUBER_SOAK_SECONDS=$(SOAK_SECONDS) $(BUILD)/tests/engine_system_tests --gtest_filter='Soak.*:*PlantedFaults*'

batch-mixed: build
	@cd tests/cli && COLUBER=$(abspath $(CLI)) python3 -B mixed_batch.py $(MODELS)

soak-server: build
	@COLUBER=$(BUILD)/coluber COLUBER_SOAK_SECONDS=$(SOAK_SECONDS) COLUBER_SOAK_REQUESTS=$(SOAK_REQUESTS) python3 -B tests/server/soak.py

gpu-bundle: $(BUILD)/.setup-test
	@cmake --preset cuda >$(BUILD)/configure-cuda.log 2>&1 || { cat $(BUILD)/configure-cuda.log; exit 1; }
	@cmake --build build-cuda -j $(JOBS) --target coluber_cuda kernels_tests tensor_tests engine_system_tests parity_tests coluber_bench_ops
	@tools/gpu_bundle.sh build-cuda build-cuda/gpu-bundle

# Needs the bundle and this checkout alone, so that it runs where nothing can be installed.
test-gpu:
	@tools/test_gpu.sh $(GPU_BUNDLE)

conformance: build
	@$(BUILD)/coluber-conformance $(CASES)

setup:
	@tools/setup.sh build

setup-dev:
	@tools/setup.sh dev

clean:
	rm -rf $(BUILD) $(BUILD)-*
