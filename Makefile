# `make` shows what there is. Everything is idempotent: a second run does only what is missing.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/exaserve-installed
ARGS ?=
PYTEST_ARGS ?=
TEST_JOBS ?= 3

.PHONY: help up install env compiled engine model tools test check down clean

help: ## This list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

up: compiled tools ## Set everything up and serve; ARGS="--detach" and the like go to `exaserve up`
	@exec $(BIN)/exaserve up $(ARGS)

install: compiled engine ## ExaServe and its development tools in .venv, and the engine's own environment

# pip's note about find-links folders that are not there says nothing about ExaServe.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit(f"ExaServe needs Python 3.11 or newer, this is {v[0]}.{v[1]}; name another: make PYTHON=python3.12 …")'
	@[ -x $(BIN)/python ] && $(BIN)/python -c 'import pip' 2>/dev/null || $(PYTHON) -m venv --clear $(VENV) \
	  || { echo "no environment could be made; on Debian: sudo apt-get install python3-venv"; exit 1; }
	@echo "installing ExaServe and its tools into $(VENV) (some 125 packages, a minute)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input -c constraints.txt -e '.[dev]' 2>&1 \
	  | { grep -v -e 'Location .* is ignored' -e 'running pip as the .root. user' || true; }
	@touch $@

env: $(STAMP)

# Without a C compiler it says so and ends well: the router then runs as plain Python.
compiled: env
	@$(BIN)/python -m serving.compile

engine: env
	@$(BIN)/python -m serving.engines.install

model: env
	@$(BIN)/python -m serving.engines.model

tools: ## Debian's prometheus and prometheus-alertmanager, if missing and root or sudo allows it
	@serving/tools.sh

# Tests with real engines, and paced ones, need the machine for themselves; the others mostly wait, side by side.
test: install model ## Set up what the tests need and run them all; PYTEST_ARGS="-m 'not real and not alone' -n 3 --dist loadgroup" for the quick ones
	@serving/tools.sh tests
ifeq ($(strip $(PYTEST_ARGS)),)
	@status=0; \
	$(BIN)/python -m pytest -m 'real or alone' || status=$$?; \
	$(BIN)/python -m pytest -m 'not real and not alone' -n $(TEST_JOBS) --dist loadgroup || status=$$?; \
	exit $$status
else
	@$(BIN)/python -m pytest $(PYTEST_ARGS)
endif

check: env ## Linters, types, import contracts, generated files up to date
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/exaserve dashboards build --check
	@$(BIN)/exaserve config check exaserve.yaml
	@bash -n serving/tools.sh .ci/run

down: ## End the stack
	@if [ -x $(BIN)/exaserve ]; then $(BIN)/exaserve down; else echo "nothing is up"; fi

clean: ## Remove what was built here; the engine and the model stay
	@rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
