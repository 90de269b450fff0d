# make setup | test | test-all | bench | quickstart | lint        (everything happens in .venv)
#
# TORCH chooses the build, e.g. TORCH="torch==2.13.0 --index-url ..." for CUDA.
# ARGS goes to the launcher: make quickstart ARGS="finetune.max_train_steps=10"
TORCH ?= torch==2.13.0
PYTHON ?= python3.11
VENV ?= .venv
ARGS ?=
OUT ?= results/quickstart

PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed-$(shell printf '%s' '$(TORCH)' | cksum | cut -d' ' -f1)
export OMP_NUM_THREADS ?= 1
export OMP_WAIT_POLICY ?= PASSIVE
export TOKENIZERS_PARALLELISM ?= false

.PHONY: setup test test-all bench quickstart lint format clean

setup: $(STAMP)

$(PY):
	$(PYTHON) -m venv $(VENV)

# Torch first and alone: as a bare requirement it would pull gigabytes of CUDA libraries.
$(STAMP): setup.py constraints.txt | $(PY)
	$(PY) -m pip install --quiet --disable-pip-version-check $(TORCH)
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,reputation]'
	rm -f $(VENV)/.installed-*
	touch $@

lint: setup
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

format: setup
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

test: lint
	$(PY) -m pytest -q -n 2 --dist worksteal -m 'not slow and not gpu' tests/unit tests/pipeline

test-all: lint
	$(PY) -m pytest -q -n 2 --dist worksteal tests

bench: setup
	@set -e; for script in benchmarks/[a-z]*.py; do echo "== $$script"; $(PY) -m benchmarks.$$(basename $$script .py); done

quickstart: setup
	$(PY) -m pipelinerl.launch +domain=privacy_hopqa hardware=cpu output_dir=$(OUT) $(ARGS)

clean:
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
