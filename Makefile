# make demo and make test do all their set-up on a machine with Python 3.11 and nothing else.
PYTHON ?= $(or $(shell command -v python3.11),python3)
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
NOW    := $(shell date +%Y%m%d-%H%M%S)
CORE   := src/autofedavg/algorithm.py,src/autofedavg/core/*,src/autofedavg/federation/*
# Three files of tests at once on two cores: many wait for a process.
BESIDE := --numprocesses=3 --dist=loadscope --no-loadscope-reorder
export PIP_DISABLE_PIP_VERSION_CHECK = 1
# Also for the build backend, which pip installs on its own.
export PIP_CONSTRAINT = $(CURDIR)/constraints.txt

.PHONY: help setup demo test test-all check lint types contracts tests unit bench docs clean

help:  ## what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

setup: $(READY)  ## the virtual environment, pinned

# torch goes first and alone: resolved together with the rest, pip may pick another build of it.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or later is needed: make PYTHON=/path/to/python3.11"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet torch
	$(BIN)/pip install --quiet --editable '.[dev,report,tensorboard,mlflow,onnx,flare,flower]'
	@touch $@

demo: $(READY)  ## three hospitals, the rows of the paper's Table 2, in minutes
	$(BIN)/autofedavg run configs/demo.toml --out runs/$(NOW)
	$(BIN)/autofedavg report runs/$(NOW)/demo --out reports/$(NOW)

test: check  ## everything that must hold before a commit lands

check: lint types contracts tests

lint: $(READY)
	$(BIN)/ruff check src tests bench docs examples conftest.py
	$(BIN)/ruff format --check src tests bench docs examples conftest.py
	$(BIN)/codespell src tests bench docs examples configs README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md
	$(BIN)/deptry src

types: $(READY)
	$(BIN)/mypy

contracts: $(READY)
	$(BIN)/lint-imports

tests: $(READY)
	$(BIN)/coverage erase
	$(BIN)/pytest -m "not slow" $(BESIDE) --durations=20 --durations-min=5 --cov --cov-report=
	$(BIN)/coverage report --fail-under=90
	$(BIN)/coverage report --fail-under=100 --include="$(CORE)"

unit: $(READY)  ## the quick tests: every equation, every unit
	$(BIN)/pytest -m "not slow" $(BESIDE) tests/paper tests/unit

test-all: lint types contracts  ## also the long checks
	$(BIN)/pytest $(BESIDE)

bench: $(READY)  ## the simulator against a bare PyTorch loop, as ratios of one run
	$(BIN)/python -m bench

docs: $(READY)  ## the documentation as a site with search, in build/docs; warnings are errors
	@$(BIN)/python -c 'import furo, myst_parser' 2>/dev/null || $(BIN)/pip install --quiet --editable '.[docs]'
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going --nitpicky -c docs . build/docs

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .coverage*
