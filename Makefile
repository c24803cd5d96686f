# SPDX-License-Identifier: GPL-2.0-or-later
# gpubudget. "make help" lists what there is; everything it builds goes to bin/
# and build/, which git ignores.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

BUILD := $(CURDIR)/build
PLUGINS := $(BUILD)/plugins
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -X main.version=$(VERSION)
# -buildvcs=false: the version is told above, and a checkout that belongs to
# another user (a container's mount) must not stop the build.
GO := go
GOBUILD := $(GO) build -trimpath -buildvcs=false -ldflags "$(LDFLAGS)"
# go-nvml binds functions that NVIDIA has deprecated; we call none of them.
export CGO_CFLAGS := -g -O2 -Wno-deprecated-declarations
# make bench: numbers of pending jobs, and how many recalculations are measured
# at each. There is one a minute.
BENCH_JOBS := 1000,10000,100000
BENCH_PASSES := 3
# make sanitize: which end-to-end tests. Not those in which sshare loads the
# plugin (NO_FAIR_TREE): the sanitizers are preloaded into slurmctld alone.
SANITIZE_RUN := Order|Usage|Standalone|Outage|BadInput|LimitsEqualStock|Preemption$$
LINT := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

# The packages whose tests start whole clusters run after the others and one at
# a time: what they measure is who waits for how long.
SLOW_PACKAGES := ./internal/testcluster ./internal/demo ./e2e

.PHONY: help
help: ## list these targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: build ## three teams share 16 GPUs by budget for three minutes, on a real Slurm
	@bin/demo

.PHONY: test
test: build ## install what is missing, build, and run all tests
	@$(GO) test -race -count=1 $$($(GO) list ./... | grep -vxF "$$($(GO) list $(SLOW_PACKAGES))")
	@$(GO) test -race -count=1 -timeout=60m -p=1 $(SLOW_PACKAGES)

.PHONY: test-fast
test-fast: ## tests that start no Slurm
	@$(GO) test -race -count=1 $$($(GO) list ./... | grep -vxF "$$($(GO) list $(SLOW_PACKAGES))")

.PHONY: e2e
e2e: build ## the end-to-end tests alone, each with its name
	@$(GO) test -race -count=1 -timeout=60m -v ./e2e

.PHONY: soak
soak: build ## a quarter of an hour of random jobs that preempt each other, judged by Slurm's accounting
	@$(GO) test -count=1 -timeout=30m -v -run 'TestSoak' ./e2e -soak.duration=15m

.PHONY: sanitize
sanitize: build ## the end-to-end tests (SANITIZE_RUN=REGEXP) with gcc's sanitizers in the shim
	@scripts/sanitize $(BUILD) '$(SANITIZE_RUN)'

.PHONY: cluster-up
cluster-up: build ## leave a small cluster running to try things on
	@bin/cluster up

.PHONY: cluster-down
cluster-down: ## end it
	@$(GO) run ./internal/testcluster/cmd/cluster down

.PHONY: provision
provision: ## install the packages and fetch the Slurm headers this needs
	@scripts/provision

.PHONY: build
build: provision commands plugins simnvml ## build bin/, build/plugins/ and the simulated NVIDIA driver

.PHONY: commands
commands:
	@mkdir -p bin
	@$(GOBUILD) -o bin/ ./cmd/gpubudget ./cmd/gshare ./cmd/gpubudget-agent ./internal/testcluster/cmd/cluster ./internal/demo/cmd/demo

.PHONY: plugins
plugins: provision
	@mkdir -p $(PLUGINS)
	@$(MAKE) --no-print-directory --silent -C slurmplugin/shim SLURM_SRC=$(BUILD)/slurm/src SLURM_BUILD=$(BUILD)/slurm/obj OUT=$(PLUGINS)
	@$(MAKE) --no-print-directory --silent -C slurmplugin/preempt SLURM_SRC=$(BUILD)/slurm/src SLURM_BUILD=$(BUILD)/slurm/obj OUT=$(PLUGINS)
	@$(MAKE) --no-print-directory --silent -C slurmplugin/jobsubmit SLURM_SRC=$(BUILD)/slurm/src SLURM_BUILD=$(BUILD)/slurm/obj OUT=$(PLUGINS)
	@$(MAKE) --no-print-directory --silent -C slurmplugin/spank SLURM_SRC=$(BUILD)/slurm/src SLURM_BUILD=$(BUILD)/slurm/obj OUT=$(PLUGINS)
	@$(GOBUILD) -buildmode=c-shared -o $(PLUGINS)/libgpubudget.so ./slurmplugin/lib

.PHONY: simnvml
simnvml: provision
	@$(MAKE) --no-print-directory --silent -C internal/simnvml/lib GO="$(GO)" OUT=$(BUILD)/simnvml

.PHONY: gpu-check
gpu-check: provision ## try the meter and the agent on this machine's GPUs; exit status 77 of bin/gpu-check: there is no driver
	@mkdir -p bin $(BUILD)/gpucheck
	@$(CC) -O2 -Wall -Wextra -Werror -o $(BUILD)/gpucheck/spin internal/gpucheck/spin/spin.c -ldl
	@$(GOBUILD) -o bin/ ./internal/gpucheck/cmd/gpu-check ./cmd/gpubudget-agent
	@bin/gpu-check -spin $(BUILD)/gpucheck/spin

.PHONY: fmt
fmt: ## format the Go code
	@gofmt -l -w $$(git ls-files --cached --others --exclude-standard '*.go')

.PHONY: check
check: ## formatting and go vet, as CI looks at them
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); \
	if [ -n "$$unformatted" ]; then printf 'not formatted (make fmt does it):\n%s\n' "$$unformatted"; exit 1; fi
	@$(GO) vet ./...

.PHONY: lint
lint: check $(BUILD)/bin/golangci-lint ## all linters of .golangci.yaml
	@$(BUILD)/bin/golangci-lint run ./...

$(BUILD)/bin/golangci-lint: Makefile
	@mkdir -p $(@D)
	@echo "building $(LINT)"
	@cd / && GOBIN=$(@D) $(GO) install $(LINT)
	@touch $@

.PHONY: bench
bench: build bench-tools ## our plugin beside Slurm's own on real slurmctlds (BENCH_JOBS=1000,10000 for less), then microbench
	@bin/bench -jobs $(BENCH_JOBS) -passes $(BENCH_PASSES) -tools $(BUILD)/bench
	@bin/bench-preempt -tools $(BUILD)/bench
	@bin/bench-meters
	@bin/bench-simulate
	@$(MAKE) --no-print-directory microbench

.PHONY: microbench
microbench: bench-tools ## benchmarks of the mathematics, the stores, the meter, the engine, the preemption plugin and the simulator, to be compared by benchstat
	@$(GO) test -run '^$$' -bench . -benchmem -timeout 30m ./fairshare ./budgets ./usage/... ./agent ./slurmplugin/... ./simulate
	@$(BUILD)/bench/bench-attempt 10000 20000 100

.PHONY: bench-tools
bench-tools: provision
	@mkdir -p bin
	@$(MAKE) --no-print-directory --silent -C internal/bench/tools SLURM_SRC=$(BUILD)/slurm/src SLURM_BUILD=$(BUILD)/slurm/obj OUT=$(BUILD)/bench
	@$(GOBUILD) -o bin/ ./internal/bench/cmd/bench ./internal/bench/cmd/bench-meters ./internal/bench/cmd/bench-preempt ./internal/bench/cmd/bench-simulate

.PHONY: clean
clean: ## remove what was built, but not the Slurm source nor a running cluster
	@rm -rf bin $(PLUGINS) $(BUILD)/bin $(BUILD)/log $(BUILD)/simnvml $(BUILD)/gpucheck
