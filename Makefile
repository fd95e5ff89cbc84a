# Floeplan. Needs bash, make and python3; `setup` brings the rest, and is quick when nothing has changed.
SHELL := /bin/bash
.DEFAULT_GOAL := help

# The installer of Python packages: uv, or pip alone with `make setup INSTALLER=pip`.
INSTALLER ?= uv
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest
SIZE ?= small

.PHONY: structure help setup demo test fuzz soak faults load lint format bench bench-check docs pictures profiles package lock audit-deps api-snapshot clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## make ./.venv with everything in it (system packages too, when they are missing)
	@INSTALLER=$(INSTALLER) scripts/setup.sh

demo: setup ## run the main job end to end, and say what to look at
	@$(BIN)/floeplan demo

test: setup ## run all tests, in two processes (ARGS='-m unit' for some, in one)
	@$(PYTEST) $(or $(ARGS),-n 2 --dist loadfile --no-loadscope-reorder)

fuzz: setup ## let every property test look for other examples for a minute, in two processes: an hour and a quarter (SECONDS=600 a test; ARGS='tests/property -k scan' for some)
	@FLOEPLAN_FUZZ_SECONDS=$(or $(SECONDS),60) $(PYTEST) -m 'property or hypothesis' -n 2 --maxschedchunk 1 $(ARGS)

soak: setup ## let writers, rewriters and expiry work against each other, and hold every read against a model (SECONDS=120 a table)
	@FLOEPLAN_SOAK_SECONDS=$(or $(SECONDS),120) $(PYTEST) tests/engines/test_soak.py $(ARGS)

faults: setup ## let stores, catalogs, disks, clocks and workers fail, every operation with every fault
	@FLOEPLAN_FAULTS=all $(PYTEST) tests/faults $(ARGS)

load: setup ## run the tests of load with large numbers: 64 writers, 1,000,000 files, 10,000 manifests, 2,000 snapshots
	@FLOEPLAN_LOAD=large $(PYTEST) -m load --durations=0 $(ARGS)

lint: setup ## check style, formatting and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

structure: setup ## print how many modules, lines and package crossings the code has, and check the limits
	@$(BIN)/python scripts/structure.py --check

format: setup ## format the code and mend what can be mended
	@$(BIN)/ruff check --fix-only .
	@$(BIN)/ruff format .

bench: setup ## measure against other engines and write docs/benchmarks.md and bench/ratios.json (SIZE=large; ARGS=--measured takes what was measured before; ARGS=dml measures one suite and writes neither)
	@$(BIN)/python -m bench --size $(SIZE) $(ARGS)

bench-check: setup ## measure, and fail when a ratio is worse than the committed one (ARGS='--measured' to measure nothing anew)
	@$(BIN)/python -m bench --size $(SIZE) --check $(ARGS)

docs: setup ## build the documents as a site in build/site; every link leads somewhere
	@$(BIN)/python scripts/check_links.py
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

pictures: setup ## draw the pictures of the documents anew, from the real demo
	@$(BIN)/python scripts/pictures.py

profiles: setup ## look where CPU time goes on the three hottest paths, and draw docs/images/profile-*.svg
	@$(BIN)/python -m bench.profiles

package: setup ## build wheel and sdist into dist/, and try the wheel in a clean environment
	@scripts/package.sh

lock: setup ## bring requirements.lock up to date with pyproject.toml (ARGS=--upgrade for newer versions)
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
		--all-extras --group dev pyproject.toml -o requirements.lock $(ARGS)

audit-deps: setup ## check the locked packages: pins, hashes, licences, versions that are bad or withdrawn, advisories
	@$(BIN)/python scripts/audit_deps.py

api-snapshot: setup ## write down the public API as it is now
	@$(BIN)/python scripts/api_snapshot.py > tests/unit/public_api.txt

clean: ## remove everything that was made here, the environment included
	rm -rf .venv .cache build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache src/*.egg-info
	find src tests scripts bench \( -name __pycache__ -o -name '_*.so' \) -prune -exec rm -rf {} + 2>/dev/null || true
