# One verb each; `make` alone lists them. Every verb makes the environment that it needs, once.
# PYTHON=/path/to/python3 chooses the interpreter (3.11 or newer); WORKERS=N how many tests run at once.

.DEFAULT_GOAL := help
.PHONY: help quickstart test check format parity bench clean

WORKERS ?= 2
PYTEST_ARGS ?=
export PYTHON
export PYTHONNOUSERSITE := 1

# What ruff and mypy look at.
ROOMS := src/gristmill tests
SCRIPTS := $(wildcard examples/*.py benchmarks/*.py)

help:  ## list the commands
	@sed -n 's/^\([a-z]*\):  ## \(.*\)/  make \1|\2/p' Makefile | awk -F'|' '{ printf "%-18s%s\n", $$1, $$2 }'

quickstart:  ## prepare a corpus found on this machine and train a small GPT on it
	@scripts/environment .venv prepare,train
	@.venv/bin/python examples/quickstart.py

test:  ## lint, types and the whole suite
	@scripts/environment .venv-test prepare,train,dev
	@$(MAKE) --no-print-directory lint
	@.venv-test/bin/python -m pytest -n $(WORKERS) -m "not parity" $(PYTEST_ARGS)

check:  ## lint, types and the rules of layout, in seconds
	@scripts/environment .venv-test prepare,train,dev
	@$(MAKE) --no-print-directory lint
	@.venv-test/bin/python -m pytest -q -n $(WORKERS) tests/test_imports.py tests/test_layout.py tests/test_public_api.py

.PHONY: lint
lint:
	@.venv-test/bin/python -m ruff check .
	@.venv-test/bin/python -m ruff format --check .
	@.venv-test/bin/python -m mypy $(ROOMS) $(SCRIPTS)

format:  ## put the code into the one format, and mend what ruff can mend
	@scripts/environment .venv-test prepare,train,dev
	@.venv-test/bin/python -m ruff check --fix .
	@.venv-test/bin/python -m ruff format .

parity:  ## compare with the originals: megatron-core with torch, and datatrove
	@scripts/environment .venv-parity train,dev,parity
	@.venv-parity/bin/python -m pytest -n $(WORKERS) -m parity $(shell grep -rl "mark\.parity" tests) $(PYTEST_ARGS)

bench:  ## run every benchmark; the last numbers are in benchmarks/RESULTS.md
	@scripts/environment .venv-test prepare,train,dev
	@for script in benchmarks/bench_*.py; do \
	  if [ -f "$$script" ]; then echo "--- $$script"; .venv-test/bin/python "$$script" || exit 1; fi; \
	done

clean:  ## remove the environments, caches and what the quick start wrote
	@rm -rf .venv .venv-test .venv-parity build dist out .mypy_cache .pytest_cache .ruff_cache .hypothesis src/*.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
