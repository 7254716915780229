# inference-fleet: `make` lists what can be done. The two that matter: `make demo` and `make test`.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory --no-builtin-rules

# Built binaries, images and running clusters are kept outside the tree, so that checkouts share them.
export INFERENCE_FLEET_CACHE ?= $(HOME)/.cache/inference-fleet

PYTHON_IN_VENV := .venv/bin/python
PYTEST := $(PYTHON_IN_VENV) -m pytest
CLUSTER := hack/cluster/cluster
TESTS ?=
TIERS := lint verify test-unit test-simulation test-shell test-gateway test-cluster test-demo test-e2e test-chart

##@ See it work

.PHONY: demo
demo: venv ## A cluster, the operator, a model, a streamed answer (again: under 90 s)
	@hack/demo/demo

.PHONY: demo-down
demo-down: venv ## Removes all that the demo started
	@hack/demo/demo --down

##@ Test

.PHONY: test
test: venv ## Everything that CI runs: lint, verify and all tiers, until the first that fails
	@started=$$SECONDS; \
	for tier in $(TIERS); do \
	  echo; echo "── make $$tier"; at=$$SECONDS; \
	  $(MAKE) $$tier || { echo; echo "make test: the first tier that fails is '$$tier' (run it alone: make $$tier)" >&2; exit 1; }; \
	  echo "── $$tier: $$((SECONDS - at)) s"; \
	done; \
	echo; echo "make test: all of $(TIERS) pass, $$((SECONDS - started)) s"

.PHONY: test-unit
test-unit: venv ## Planner, renderers, parsers, CRDs: seconds, no sockets
	@$(PYTEST) tests/unit $(TESTS)

.PHONY: test-simulation
test-simulation: venv ## Whole fleets in virtual time: laws of the simulator, scalers against traffic
	@$(PYTEST) tests/simulation $(TESTS)

.PHONY: test-shell
test-shell: venv ## Wiring, queue, back-off, lease, shutdown, on a fake HTTP API
	@$(PYTEST) tests/shell $(TESTS)

.PHONY: test-gateway
test-gateway: venv ## The real gateway process against mock and real engines
	@$(PYTEST) tests/gateway $(TESTS)

.PHONY: test-cluster
test-cluster: venv ## A real API server with KWOK's nodes (builds Kubernetes on first use: minutes)
	@$(PYTEST) tests/cluster $(TESTS)

.PHONY: test-demo
test-demo: venv ## make demo, again, and make demo-down
	@$(PYTEST) tests/demo $(TESTS)

.PHONY: test-e2e
test-e2e: venv ## A real node: Helm install, real llama.cpp pods, streams under load
	@hack/e2e tests/e2e $(TESTS)

.PHONY: test-chart
test-chart: venv ## The chart: lint, schema, snapshots, security, strict validation by an API server
	@$(PYTEST) tests/chart $(TESTS)

.PHONY: soak
soak: venv ## Long runs: 200,000 requests, ten minutes without an API server, 220 kills of the operator (about 40 minutes)
	@SOAK=1 $(PYTEST) tests/gateway/test_soak.py tests/gateway/test_channel.py -s $(TESTS)
	@INFERENCE_FLEET_KILLS=220 $(PYTEST) tests/cluster/test_faults_crash.py -s $(TESTS)

.PHONY: lint
lint: venv ## ruff, mypy strict, import contracts
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/mypy
	@.venv/bin/lint-imports --no-logo

.PHONY: verify
verify: venv ## Fails where a generated file differs from what the code generates
	@$(PYTHON_IN_VENV) -m hack.reference --check

.PHONY: bench-help
bench-help: ## make bench-NAME measures: tests/bench/NAME.py, tables under docs/benchmarks/
	@cd tests/bench && for file in *.py; do echo "  make bench-$$(basename "$$file" .py | tr _ -)"; done

.PHONY: bench-autoscaling
bench-autoscaling: venv ## Scalers beside each other in the simulator, llm-d's published scenario first
	@$(PYTHON_IN_VENV) -m hack.bench.autoscaling

bench-%: venv
	@$(PYTHON_IN_VENV) -m tests.bench.$(subst -,_,$*)

.PHONY: bench-operator
bench-operator: venv ## What the operator costs with a thousand policies: time, writes, memory, CPU
	@$(PYTHON_IN_VENV) -m tests.bench.operator

.PHONY: bench-gateway
bench-gateway: venv ## What the gateway costs, beside vllm-router (AGAINST=CHECKOUT: beside another revision too)
	@$(PYTHON_IN_VENV) -m tests.bench.gateway $(if $(AGAINST),--against $(AGAINST))

##@ Develop

.PHONY: venv
venv: ## .venv, at the versions of constraints.txt
	@hack/venv

.PHONY: generate
generate: venv ## Writes crds/, the chart's copies of them, docs/reference/
	@$(PYTHON_IN_VENV) -m hack.reference

.PHONY: golden
golden: venv ## Writes the chart's rendered snapshots anew; look at the difference before you commit
	@UPDATE_GOLDEN=1 $(PYTEST) tests/chart/test_snapshots.py

.PHONY: format
format: venv ## Formats and mends what ruff can mend
	@.venv/bin/ruff format .
	@.venv/bin/ruff check --fix .

.PHONY: tools
tools: venv ## Builds Kubernetes, etcd, KWOK, Helm and the vLLM simulator from Go modules (cold: about half an hour)
	@$(CLUSTER) build

.PHONY: constraints
constraints: venv ## Freezes .venv's versions into constraints.txt
	@{ echo "# The versions that CI runs with: 'make constraints' writes this file from .venv."; \
	  $(PYTHON_IN_VENV) -m pip freeze --exclude-editable; } >constraints.txt

.PHONY: help
help: ## This list
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z0-9-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo; echo "TESTS='-k name -x' is handed to pytest. Caches: $(INFERENCE_FLEET_CACHE)"
