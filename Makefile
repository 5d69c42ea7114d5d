# make setup   the virtual environment .venv from the pinned requirements
# make train   set up, then train EXPERIMENT (default experiments/hopper.yaml)
# make test    set up, then lint and run all tests
PYTHON ?= python3
EXPERIMENT ?= experiments/hopper.yaml
# Extra arguments for `python -m runtime train`, such as ARGS="--set seed=1 --out runs/mine".
ARGS ?=
# Extra package index, for CPU-only builds of torch.
TORCH_INDEX_URL ?=

VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check $(if $(TORCH_INDEX_URL),--extra-index-url $(TORCH_INDEX_URL))

.PHONY: help setup setup-dev train test lint docs clean

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

setup: $(VENV)/.installed

setup-dev: $(VENV)/.installed-dev

train: setup
	$(BIN)/python -m runtime train $(EXPERIMENT) $(ARGS)

test: setup-dev lint
	$(BIN)/python -m pytest $(ARGS)

lint: setup-dev
	$(BIN)/ruff check .

clean:
	rm -rf $(VENV)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; name one with PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: requirements.txt | $(BIN)/python
	$(PIP_INSTALL) -r requirements.txt
	@touch $@

$(VENV)/.installed-dev: requirements.txt requirements-dev.txt | $(BIN)/python
	$(PIP_INSTALL) -r requirements-dev.txt
	@touch $(VENV)/.installed $@
