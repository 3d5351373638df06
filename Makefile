# Every target works from a fresh clone; `make` alone lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-browser lint bench bench-quick soak release release-pythons lock clean

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The stamp lives in the environment, so that removing the environment removes the stamp with it.
INSTALLED := $(VENV)/.installed

# Nodes, commands and Spark's workers import the same modules again and again: compile these once.
unexport PYTHONDONTWRITEBYTECODE

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r name text; do printf '  make %-12s %s\n' "$$name" "$$text"; done

setup: $(INSTALLED) ## check Java, make .venv, install the locked dependencies and the project

$(INSTALLED): requirements.lock pyproject.toml | $(BIN)/python
	@.ci/java
	$(BIN)/python -m pip install --require-hashes --requirement requirements.lock
	$(BIN)/python -m pip install --no-deps --no-build-isolation --editable .
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"m4cast needs Python 3.11 or newer, $(PYTHON) is {sys.version}: try make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

demo: setup ## nine real nodes and a second unit, Spark pipelines that publish and ingest, faults, and an audit of every row
	$(BIN)/m4cast demo

test: setup ## run the tests (PYTEST_ARGS=... is passed on)
	$(BIN)/python -m pytest -n 2 $(PYTEST_ARGS)

test-browser: setup ## open the console and the report in a headless Chromium (installed with apt-get as root, else said how)
	@.ci/chromium
	$(BIN)/python -m pytest -m browser tests/browser

lint: setup ## ruff (lint and format) and mypy, without changing anything
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: setup ## measure beside LMDB, NATS, Kafka, Spark (BENCH="spark rows" for some)
	$(BIN)/python -m tests.bench $(BENCH)

bench-quick: setup ## a little of it, in less than five minutes
	$(BIN)/python -m tests.bench --quick $(BENCH)

soak: setup ## run the long tests, then fault seeds until stopped
	$(BIN)/python -m pytest -m soak
	$(BIN)/python -m tests.simulation.soak

release: setup ## build the wheel and the sdist in dist/, and check both
	.ci/release

release-pythons: release ## install the wheel with its dependencies into clean environments (PYTHONS="python3.11 ..."), and run nodes there
	.ci/pythons $(PYTHONS)

lock: | $(BIN)/python ## rewrite requirements.lock from pyproject.toml (UPGRADE=--upgrade for newer versions)
	$(BIN)/python -m pip install uv
	$(BIN)/uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --generate-hashes $(UPGRADE) \
		--no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock' --quiet --output-file requirements.lock

clean: ## remove the environment, caches and build products
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
