# Needs make and Python 3.11 or newer; everything else goes into a virtual environment in this
# folder, one for each version of Python. Another interpreter: make test PYTHON=python3.12

PYTHON ?= python3
TEST_ARGS ?=
CONTESTS ?=

# Prints "3.11" or the like if the interpreter $(1) runs and is new enough, else nothing.
version_of = $(shell $(1) -c 'import sys; v = sys.version_info; v >= (3, 11) and print("%d.%d" % v[:2])' 2>/dev/null)

# A machine's python3 may be older than a python3.11 beside it. A PYTHON that the user asked for
# is never replaced by another.
ifeq ($(origin PYTHON),file)
  PYTHON := $(firstword $(foreach python,python3 python3.11 python3.12 python3.13 python3.14,\
                          $(if $(call version_of,$(python)),$(python))) python3)
endif
VERSION := $(call version_of,$(PYTHON))
VENV := .venv-$(VERSION)
BIN := $(VENV)/bin

# The last TensorFlow with a TPUEstimator, for the benchmarks, needs Python 3.11 and an older NumPy.
TENSORFLOW := .venv-tensorflow

.PHONY: help demo test test-fast test-faults test-tpu lint format bench clean
.NOTPARALLEL:
.DELETE_ON_ERROR:

help:
	@echo 'make demo        train, evaluate, predict, resume and export on real handwritten digits'
	@echo 'make test        the whole test suite (TEST_ARGS="-k loop" for a part of it)'
	@echo 'make test-fast   the test suite without its slow tests'
	@echo 'make test-faults kills more than 200 training runs at random, and sees that nothing is lost'
	@echo 'make test-tpu    compiles the loops for a TPU; none is needed, but 640 MB of libtpu'
	@echo 'make lint        ruff and pyright'
	@echo 'make format      ruff rewrites the sources'
	@echo 'make bench       the contests with other frameworks, to benchmarks/RESULTS.md (25 minutes;'
	@echo '                 CONTESTS="mlp predict" holds some of them, and only shows them)'
	@echo 'make clean       removes what the other targets made'

demo: $(VENV)/installed-demo
	$(BIN)/python examples/digits.py

test: $(VENV)/installed-test
	$(BIN)/python -m pytest -n 2 $(TEST_ARGS)

test-fast: $(VENV)/installed-test
	$(BIN)/python -m pytest -n 2 -m 'not slow' $(TEST_ARGS)

test-faults: $(VENV)/installed-test
	FAULT_TRAJECTORIES=75 $(BIN)/python -m pytest -n 2 tests/faults

test-tpu: $(VENV)/installed-test $(VENV)/installed-tpu
	$(BIN)/python -m pytest -n 2 tests/tpu

lint: $(VENV)/installed-lint
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/python -m pyright --pythonpath $(BIN)/python

format: $(VENV)/installed-lint
	$(BIN)/python -m ruff check --fix .
	$(BIN)/python -m ruff format .

bench: $(VENV)/installed-bench $(TENSORFLOW)/installed
	$(BIN)/python -m benchmarks $(CONTESTS) --tensorflow $(TENSORFLOW)/bin/python \
	  $(if $(CONTESTS),,--output benchmarks/RESULTS.md)

# One stamp for each extra of pyproject.toml, which says what goes in.
$(VENV)/installed-%: pyproject.toml
	$(if $(VERSION),,$(error Python 3.11 or newer is needed, and "$(PYTHON)" is not one that \
	  runs. Install it, or name one: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11))
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@echo 'Installing into $(VENV) (minutes the first time)'
	@$(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --editable '.[$*]'
	@touch $@

$(TENSORFLOW)/installed: benchmarks/tensorflow.txt | $(VENV)/installed-bench
	@echo 'Installing into $(TENSORFLOW) (a minute the first time)'
	@$(BIN)/python -m uv venv --quiet --clear --python 3.11 $(TENSORFLOW)
	@$(BIN)/python -m uv pip install --quiet --python $(TENSORFLOW) --requirement $<
	@touch $@

clean:
	rm -rf .venv-* .hypothesis .pytest_cache .ruff_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
