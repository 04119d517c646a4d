# Two commands do everything on a machine with Python 3.11 or newer:
#   make quickstart    the whole chain on a small real model
#   make test          lint, types and every test
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
export PATH := $(CURDIR)/$(BIN):$(PATH)

# KEEP=1 leaves the sandbox and the promoted drafter up after the quick start.
KEEP ?=
# Most of these tests wait: for processes to start, for watches, for probes.
PARALLEL := -n 2 --dist loadfile
PYTEST ?= $(BIN)/python -m pytest
COVERAGE := --cov=drafter_operator --cov=drafter_jobs --cov=drafter_sandbox --cov-append --cov-report=

.PHONY: help
help: ## List the targets.
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 22

$(INSTALLED): requirements/cpu.txt requirements/engines.txt pyproject.toml requirements/install
	requirements/install "$(PYTHON)" "$(VENV)"
	@# Only the quick start needs it, and says so itself if it is not there.
	-$(BIN)/python -m drafter_sandbox.quickstart --fetch
	touch $@

.PHONY: install
install: $(INSTALLED) ## Create the virtual environment with every pinned package, kubectl and helm.

.PHONY: quickstart
quickstart: $(INSTALLED) ## Run one DrafterRun on SmolLM2-135M, from prompts to a promoted drafter.
	$(BIN)/python -m drafter_sandbox.quickstart $(if $(KEEP),--keep)

.PHONY: quickstart-stop
quickstart-stop: $(INSTALLED) ## Stop a sandbox that KEEP=1 left up.
	$(BIN)/python -m drafter_sandbox.quickstart --stop

.PHONY: prometheus
prometheus: $(INSTALLED) ## Fetch Debian's Prometheus, without root, if the PATH has none.
	$(BIN)/python -m drafter_sandbox.observe --fetch

.PHONY: fetch-prometheus
fetch-prometheus: $(INSTALLED)
	-@$(BIN)/python -m drafter_sandbox.observe --fetch

.PHONY: observe
observe: $(INSTALLED) ## Put a real Prometheus on the quick start that KEEP=1 left up.
	$(BIN)/python -m drafter_sandbox.observe

.PHONY: observe-stop
observe-stop: $(INSTALLED) ## Stop that Prometheus.
	$(BIN)/python -m drafter_sandbox.observe --stop

.PHONY: install-demo
install-demo: $(INSTALLED) ## Install the chart in the sandbox, and run and await the smallest DrafterRun.
	$(BIN)/python -m drafter_sandbox.quickstart.install_demo

.PHONY: generate
generate: $(INSTALLED) ## Write what is generated: the CRD, the chart's copy, roles and README, docs/.
	$(BIN)/python -m drafter_operator.generate

.PHONY: lint
lint: $(INSTALLED) ## Check format, lint, types and drift of generated files.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m drafter_operator.generate --check
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yaml
	$(BIN)/check-jsonschema --quiet --builtin-schema custom.github-workflows-require-timeout .github/workflows/*.yaml

.PHONY: format
format: $(INSTALLED) ## Format and fix what ruff can fix.
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.PHONY: test
test: lint test-unit test-cluster test-e2e ## Everything: lint, unit, sandbox and end-to-end tests, coverage.
	$(BIN)/coverage report --skip-covered --skip-empty

.PHONY: test-unit
test-unit: $(INSTALLED) fetch-prometheus ## Pure decisions, builders against golden YAML, contract and export.
	rm -f .coverage
	OMP_NUM_THREADS=1 $(PYTEST) tests/unit $(PARALLEL) $(COVERAGE)

.PHONY: test-cluster
test-cluster: $(INSTALLED) fetch-prometheus ## The sandbox with real kubectl and helm, and the operator in it.
	$(PYTEST) tests/cluster $(PARALLEL) $(COVERAGE)

.PHONY: test-e2e
test-e2e: $(INSTALLED) fetch-prometheus ## The whole chain through real speculators and real SGLang.
	$(PYTEST) tests/e2e $(COVERAGE)

.PHONY: test-images
test-images: $(INSTALLED) ## Build the operator's image with podman and run it against the sandbox.
	$(PYTEST) tests/images

.PHONY: bench
bench: $(INSTALLED) ## Measure speeds as ratios within one run.
	$(PYTEST) tests/bench

.PHONY: freeze
freeze: ## Write requirements/cpu.txt, operator.txt and jobs.txt from the present environment.
	requirements/freeze "$(VENV)"

.PHONY: clean
clean: ## Remove the environment and the quick start's files.
	rm -rf $(VENV) .quickstart
