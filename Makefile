# Every target installs what it lacks, so that each works on a fresh checkout.
PYTHON ?= python3
ARGS ?=
BIN := .venv/bin
export OMP_NUM_THREADS ?= 2

.PHONY: help demo test test-all lint chromium

help:
	@echo "make demo      align the embedded model and report             (ARGS=... is passed on)"
	@echo "make test      the default tests                               (ARGS=... is passed on)"
	@echo "make test-all  the default and the slow tests"
	@echo "make lint      ruff and mypy"

.venv/.installed: setup.cfg pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

demo: .venv/.installed
	$(BIN)/flowalign demo $(ARGS)

test: .venv/.installed chromium
	$(BIN)/python -m pytest -q $(ARGS)

test-all: .venv/.installed chromium
	$(BIN)/python -m pytest -q -m "" $(ARGS)

lint: .venv/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The report's test opens it in a browser; without one that test skips.
chromium:
	@if command -v chromium || command -v google-chrome; then exit 0; fi >/dev/null; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing chromium for the report's test"; \
		{ apt-get update && DEBIAN_FRONTEND=noninteractive \
			apt-get install --yes --no-install-recommends chromium; } >/dev/null 2>&1 \
			&& exit 0; \
	fi; \
	echo "no chromium or google-chrome on PATH: the report's browser test will be skipped"
