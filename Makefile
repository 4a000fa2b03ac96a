# The commands of everyday work. `make` lists them; each does what is missing before it, once.

JOBS ?= $(shell nproc)
export JOBS
# Options of `make bench`.
BENCH ?= --results bench/results
# How long `make soak` may take, and options of its program.
SOAK_MINUTES ?= 60
SOAK ?=
CTEST := ctest --parallel $(JOBS) --no-label-summary

.DEFAULT_GOAL := help
.PHONY: help setup build demo test unit asan tsan soak neon
.PHONY: counts check style format lint bench clean

help: ## List these commands
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 16

setup: ## Install what is missing: system packages, llama.cpp's source, the test model
	@tools/setup.sh

build: setup ## Build the headrace command into build/release
	@tools/build.sh release

demo: build ## A text whose KV is eight times the memory, with the same answer
	@python3 tools/demo.py

test: setup ## Build and run the whole test suite
	@tools/setup.sh gemma
	@tools/build.sh test
	@$(CTEST) --preset test

unit: setup ## The tests beside the sources, under a minute
	@tools/build.sh test
	@$(CTEST) --preset test --label-regex '^unit$$'

asan: setup ## Modules below cli, faults and soak under the address and undefined sanitizers
	@tools/build.sh asan
	@$(CTEST) --preset asan

tsan: setup ## Tests of what runs in several threads, under the thread sanitizer
	@tools/build.sh tsan
	@$(CTEST) --preset tsan

soak: setup ## Random tests with new seeds, up to an hour; SOAK_MINUTES=5 is short
	@tools/build.sh test
	@HEADRACE_SOAK_MINUTES=$(SOAK_MINUTES) build/test/tests/soak_test $(SOAK)

neon: setup ## Kernels and their tests for AArch64, in an emulator
	@tools/setup.sh neon
	@tools/build.sh neon
	@$(CTEST) --preset neon

counts: setup ## Store the instruction counts, after a change that is meant to alter them
	@tools/build.sh test
	@cmake --build --preset test --target update_counts

check: style unit ## style and unit: run it before a commit

style: ## Format, layers, spelling and the other rules that need no build
	@tools/style.sh

format: ## Format the sources in place
	@tools/style.sh --fix

lint: setup ## clang-tidy over the C++ sources
	@tools/lint.sh

# A peer that cannot be had is left out, with a line.
bench: setup ## Headrace, its peers and the machine's limits in turns; BENCH=--quick is short
	@tools/build.sh bench
	-@tools/setup.sh peers
	@build/bench/headrace bench -m build/models/SmolLM2-135M-Instruct.Q4_1.gguf \
	  --llama-bench build/bench/llama-bench --llama-server build/bench/llama-server \
	  --openvino-python build/deps/openvino/bin/python $(BENCH)

clean: ## Remove what was built; downloads stay
	rm -rf build/dev build/release build/test build/asan build/tsan build/neon build/bench build/lint
