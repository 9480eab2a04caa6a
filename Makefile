# Two commands do everything: `make demo` runs the main job, `make test` the tests.
VENV := .venv
PYTHON ?= python3
BIN := $(VENV)/bin

.PHONY: install demo test test-slow lint format bench lock clean

# Rebuilt when the requirements change; constraints.txt pins every package, for all extras.
$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

install: $(VENV)/.installed

demo: install
	$(BIN)/cavity demo

test: install
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not slow"

test-slow: install
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m slow

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

# Resolve anew, for all extras at once, and write what was chosen.
lock:
	$(PYTHON) tools/lock.py

clean:
	rm -rf $(VENV) build dist *.egg-info src/*.egg-info
