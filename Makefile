# make demo and make test do all their set-up on a machine with Python 3.11 and nothing else.
PYTHON ?= $(or $(shell command -v python3.11),python3)
VENV   := .venv
BIN    := $(VENV)/bin
DEMO   := $(VENV)/.ready-demo
READY  := $(VENV)/.ready
NOW    := $(shell date +%Y%m%d-%H%M%S)
CORE   := src/autofedavg/algorithm.py,src/autofedavg/core/*,src/autofedavg/federation/*
# Files of tests at once on two cores: in the second tier many wait for a process. Each worker
# imports every test, so the first tier, which waits for nothing, has no more of them than cores.
FILES  := --dist=loadscope --no-loadscope-reorder
BESIDE := --numprocesses=4 $(FILES)
PAIR   := --numprocesses=2 $(FILES) -p no:cacheprovider
# Under coverage: tests of the rooms, without files that cost much for the lines that only they reach.
TRACED := tests/unit tests/contracts tests/integration
UNTRACED := contracts/test_engines contracts/test_equals_fedavg contracts/test_methods contracts/test_policy \
	integration/test_hostile_folders unit/federation/test_learning_properties unit/federation/test_steps \
	unit/methods/test_algorithm
LOST   := no traced test reaches the lines above: add one, or take a file out of UNTRACED (Makefile)
FIRST  := not (browser or engine or export or process or published or slow or trains)
export PIP_DISABLE_PIP_VERSION_CHECK = 1
# Also for the build backend, which pip installs on its own.
export PIP_CONSTRAINT = $(CURDIR)/constraints.txt
# Tests start hundreds of interpreters: none of them compiles the package and the tests again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test test-more test-all lint types contracts quick covered docs bench clean

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

# mypy without a cache takes half a minute of one core: beside the tests.
test: lint contracts  ## the first tier: tools, equations, units, contracts; under four minutes
	$(MAKE) --no-print-directory --jobs=2 types quick

test-more: $(READY)  ## the second: processes, engines, a browser, exports, published results, coverage
	$(MAKE) --no-print-directory --jobs=2 docs covered
	$(BIN)/pytest -m "not slow and not ($(FIRST))" $(BESIDE) --durations=20 --durations-min=5 tests

test-all: lint types contracts docs  ## everything, slow tests and the GPU's included
	AUTOFEDAVG_EXAMPLES=thorough $(BIN)/pytest $(BESIDE) --doctest-modules tests src

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
	$(BIN)/pytest -m "$(FIRST)" $(PAIR) tests

# Tracing doubles what tests cost, so only as many run under it as the gates need, and properties
# on a few examples. `make test` runs all of them untraced.
covered: $(READY)
	$(BIN)/coverage erase
	AUTOFEDAVG_EXAMPLES=traced $(BIN)/pytest -m "$(FIRST)" $(PAIR) --cov --cov-report= \
		$(patsubst %,--ignore=tests/%.py,$(UNTRACED)) --doctest-modules $(TRACED) src
	$(BIN)/coverage report --fail-under=90 || { echo "$(LOST)" >&2; exit 2; }
	$(BIN)/coverage report --fail-under=100 --include="$(CORE)" || { echo "$(LOST)" >&2; exit 2; }

bench: $(READY)  ## the simulator against a bare PyTorch loop, as ratios of one run
	$(BIN)/python -m bench

docs: $(READY)  ## the documentation as a site with search, in build/docs; warnings are errors
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going --nitpicky -c docs . build/docs

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .coverage*
