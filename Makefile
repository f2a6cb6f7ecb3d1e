# `make demo` and `make test` set everything up themselves; running them again is quick.
PYTHON ?= python3
BIN := .venv/bin
# Threads that wait for work must not spin: on a shared machine they would take it from the others.
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: demo test lint docs clean

demo: .venv/ready
	$(BIN)/python -m benchmarks.demo

test: .venv/ready
	scripts/install_chromium.sh
	$(BIN)/python -m pytest

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: .venv/ready
	$(BIN)/mkdocs build --strict

.venv/ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv runs site
