# Two commands do everything: `make demo` runs the main job, `make test` the tests.
VENV := .venv
PYTHON ?= python3
BIN := $(VENV)/bin

.PHONY: install demo test test-experiments test-slow test-exhaustive test-pythons lint format bench docs docs-run lock clean

# Rebuilt when the requirements change. requirements.lock has every package, and the build's, by its hashes.
PIP := $(BIN)/pip install --quiet --disable-pip-version-check
$(VENV)/.installed: pyproject.toml experiments/pyproject.toml requirements.lock
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --require-hashes --requirement requirements.lock
	$(PIP) --no-deps --no-build-isolation --editable . --editable experiments
	touch $@

install: $(VENV)/.installed

demo: install
	$(BIN)/cavity demo

test: install
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not slow" tests src

# The tests of the second distribution: loaders of public data, the papers' tables, benchmarks in small.
test-experiments: install
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not exhaustive" experiments

# With types and shapes of arrays checked at every call.
test-slow: install
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "slow and not exhaustive" tests --jaxtyping-packages=cavity,beartype.beartype

# More cases of what the slow tests check: before a release.
test-exhaustive: install
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m exhaustive

# The fast tests on the other supported versions of Python, each in an environment of its own.
test-pythons: install
	$(BIN)/python tools/pythons.py

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pyright

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: install
	$(BIN)/cavity bench core

# The documentation site, in docs/_build/html. Nothing is run or fetched; a warning is an error.
docs: install
	$(BIN)/python -m sphinx --builder html --fail-on-warning --keep-going --nitpicky --quiet docs docs/_build/html

# Run every tutorial, and compare its output with the one in its text; `tools/tutorials.py --write` updates the text.
docs-run: install
	$(BIN)/python tools/tutorials.py

# Resolve all versions again, for all extras at once, and write the lock file.
lock: install
	$(BIN)/python tools/lock.py

clean:
	rm -rf $(VENV) .venv-* build dist docs/_build *.egg-info src/*.egg-info
