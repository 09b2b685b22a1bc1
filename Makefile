# The verbs of this project, the same for people and for CI. Needs python3 (3.11 or later) with venv, and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
N ?= 500
SEED ?= 0

.PHONY: help demo test check lint torture bench clean

help:           ## say what there is
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/ —/'

demo: $(VENV)/.demo   ## train a small GPT, kill it, prove the resume bit-exact
	$(BIN)/holdfast demo

test: lint      ## everything but the long torture, under 10 minutes on two cores
	$(BIN)/python -m pytest

check: lint     ## lint, layers, types and the fast tests, under 30 seconds
	$(BIN)/python -m pytest -m "not slow" -n 2

lint: $(VENV)/.dev    ## style, layers, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo 2>&1 | tail -n 2
	$(BIN)/mypy

torture: $(VENV)/.dev ## N kills at random instants and inside saves; N=500 SEED=0
	$(BIN)/python -m tests.scenario.torture --kills $(N) --seed $(SEED)

bench: $(VENV)/.bench ## speed and memory beside the machine's limits and other libraries, into docs/; two hours
	$(BIN)/python -m benchmarks

clean:          ## remove what these verbs made
	rm -rf $(VENV) demo .pytest_cache .mypy_cache .ruff_cache .import_linter_cache

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[demo]'
	@touch $@

$(VENV)/.bench: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[bench]'
	@touch $@ $(VENV)/.demo

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[dev]'
	@touch $@ $(VENV)/.demo
