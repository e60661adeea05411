# make demo and make test do all their set-up on a machine with Python 3.11 and nothing else.
PYTHON ?= $(or $(shell command -v python3.11),python3)
VENV   := .venv
BIN    := $(VENV)/bin
DEMO   := $(VENV)/.ready-demo
READY  := $(VENV)/.ready
NOW    := $(shell date +%Y%m%d-%H%M%S)
CORE   := src/autofedavg/algorithm.py,src/autofedavg/core/*,src/autofedavg/federation/*
# Three files of tests at once on two cores: many wait for a process.
BESIDE := --numprocesses=3 --dist=loadscope --no-loadscope-reorder
export PIP_DISABLE_PIP_VERSION_CHECK = 1
# Also for the build backend, which pip installs on its own.
export PIP_CONSTRAINT = $(CURDIR)/constraints.txt
# Tests start hundreds of interpreters: none of them compiles the package and the tests again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test test-more test-all lint types contracts quick docs bench clean

help:  ## what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

setup: $(READY)  ## the virtual environment with everything, pinned

# torch goes first and alone: resolved together with the rest, pip may pick another build of it.
$(DEMO): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or later is needed: make PYTHON=/path/to/python3.11"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet torch
	$(BIN)/pip install --quiet --editable '.[report]'
	@touch $@

# FLARE needs pyhocon, which is published as source with a legacy setup.py: --use-pep517 builds a wheel of it.
$(READY): $(DEMO)
	$(BIN)/pip install --quiet --use-pep517 --editable '.[dev,report,serve,docs,tensorboard,mlflow,onnx,blind,privacy,flare,flower]'
	@touch $@

demo: $(DEMO)  ## three hospitals, the rows of the paper's Table 2, in minutes
	$(BIN)/autofedavg run demo --out runs/$(NOW)
	$(BIN)/autofedavg report runs/$(NOW)/demo --out reports/$(NOW)

test: lint types contracts quick  ## the first tier: tools, equations, units, contracts; under four minutes

test-more: $(READY) docs  ## the second: processes, engines, a browser, exports, published results, coverage
	$(BIN)/coverage erase
	$(BIN)/pytest -m "not slow" $(BESIDE) --durations=20 --durations-min=5 --cov --cov-report= --doctest-modules tests src
	$(BIN)/coverage report --fail-under=90
	$(BIN)/coverage report --fail-under=100 --include="$(CORE)"

test-all: lint types contracts docs  ## everything, slow tests and the GPU's included
	$(BIN)/pytest $(BESIDE) --doctest-modules tests src

lint: $(READY)
	$(BIN)/ruff check src tests bench docs examples conftest.py
	$(BIN)/ruff format --check src tests bench docs examples conftest.py
	$(BIN)/codespell src tests bench docs examples README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md
	$(BIN)/deptry src

types: $(READY)
	$(BIN)/mypy

contracts: $(READY)
	$(BIN)/lint-imports

quick: $(READY)
	$(BIN)/pytest -m "not (browser or engine or export or process or published or slow or trains)" $(BESIDE) -p no:cacheprovider tests

bench: $(READY)  ## the simulator against a bare PyTorch loop, as ratios of one run
	$(BIN)/python -m bench

docs: $(READY)  ## the documentation as a site with search, in build/docs; warnings are errors
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going --nitpicky -c docs . build/docs

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .coverage*
