# On a fresh machine nothing comes before these: `make train` (the main job) and `make test`.
PYTHON ?= python3
ENV ?= pong
ARGS ?=
# The package index torch is taken from, for example one of CPU builds; empty: where pip looks by itself.
TORCH_INDEX ?=
# Processes that run test files: one more than two cores, since many tests wait for others.
WORKERS ?= 3
# Of `make soak`: random faults, runs that meet them at a time, minutes of fuzzing, and the seed of both.
FAULTS ?= 200
LANES ?= 2
FUZZ ?= 10
SEED ?= 0
VENV := .venv
BIN := $(VENV)/bin

# The tests start some hundred processes: without their byte code each would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: train test test-all soak lint docs clean

train: $(VENV)/installed
	$(BIN)/dicerl train $(ENV) $(ARGS)

test: $(VENV)/installed-test lint
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# The same and what takes long for what it adds: the marker `slow` (pyproject.toml).
test-all: $(VENV)/installed-test lint
	$(BIN)/python -m pytest -m '' -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# Random faults against real runs, then mutated files; what failed is kept in soak-failures/.
soak: $(VENV)/installed-soak
	cd tests && $(abspath $(BIN))/python -m faults --faults $(FAULTS) --lanes $(LANES) --seed $(SEED) --json ../benchmarks/results/faults.json --keep ../soak-failures
	cd tests && $(abspath $(BIN))/python -m faults.fuzz --minutes $(FUZZ) --seed $(SEED) --keep ../soak-failures

lint: $(VENV)/installed-test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# The documentation as a site, in site/; a warning is an error, as in tests/test_site.py. (The variable silences the theme's banner.)
docs: $(VENV)/installed-test
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# constraints.txt pins the tested versions; torch first and alone, so that its index is asked for nothing else of ours.
$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "dicerl needs Python 3.11 or newer; try: make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable .
	touch $@

$(VENV)/installed-test: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test]'
	touch $@

$(VENV)/installed-soak: $(VENV)/installed-test
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[soak]'
	touch $@

clean:
	rm -rf $(VENV) soak-failures build site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
