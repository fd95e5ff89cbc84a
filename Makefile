# Floeplan. Needs bash, make and python3; `setup` installs the rest and returns at once when nothing has changed.
SHELL := /bin/bash
.DEFAULT_GOAL := help

# The installer of Python packages: uv, or pip with `make setup INSTALLER=pip`.
INSTALLER ?= uv
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest
PARALLEL := -n 3 --dist loadfile --no-loadscope-reorder
SIZE ?= small

.PHONY: help setup demo test test-all engines fuzz soak faults load lint structure format bench bench-check docs pictures profiles package wheels lock audit-deps api-snapshot clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## create ./.venv with all dependencies (and install missing system packages)
	@INSTALLER=$(INSTALLER) scripts/setup.sh

demo: ## plan, delete from and rewrite an evolved table, and explain the output
	@INSTALLER=$(INSTALLER) scripts/setup.sh run
	@$(BIN)/floeplan demo

test: setup ## run the tests in three processes, without the long tail of the matrices (ARGS='-m unit' selects tests, in one process)
	@$(PYTEST) $(or $(ARGS),-m 'not matrix and not foreign' $(PARALLEL))

test-all: setup ## run every test but those of make engines in three processes, as CI does
	@$(PYTEST) -m 'not foreign' $(PARALLEL) $(ARGS)

engines: setup ## run the whole matrix of tables through the planning server and in format 4, Flink, Trino, iceberg-go and iceberg-rust
	@$(PYTEST) -m foreign $(PARALLEL) $(ARGS)

fuzz: setup ## run each property test with new examples for 60 seconds, 75 minutes in all (SECONDS=600; ARGS='tests/property -k scan')
	@FLOEPLAN_FUZZ_SECONDS=$(or $(SECONDS),60) $(PYTEST) -m 'property or hypothesis' -n 2 --maxschedchunk 1 $(ARGS)

soak: setup ## run writers, rewriters and expiry concurrently and compare every read with a serial model (SECONDS=120 per table)
	@FLOEPLAN_SOAK_SECONDS=$(or $(SECONDS),120) $(PYTEST) tests/engines/test_soak.py $(ARGS)

faults: setup ## test every operation with every fault of stores, catalogs, disks, clocks and workers
	@FLOEPLAN_FAULTS=all $(PYTEST) tests/faults $(ARGS)

load: setup ## run the load tests with large numbers: 64 writers, 200 clients, 1,000,000 files, 10,000 manifests, 2,000 snapshots
	@FLOEPLAN_LOAD=large $(PYTEST) -m load --durations=0 $(ARGS)

lint: setup ## check style, formatting and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

structure: setup ## print how many modules, lines and package crossings the code has, and check the limits
	@$(BIN)/python scripts/structure.py --check

format: setup ## format the code and apply automatic fixes
	@$(BIN)/ruff check --fix-only .
	@$(BIN)/ruff format .

bench: setup ## measure against other engines; write docs/benchmarks.md and bench/ratios.json (SIZE=large; ARGS=--measured uses the last results; ARGS=dml measures one suite and replaces its rows)
	@$(BIN)/python -m bench --size $(SIZE) $(ARGS)

bench-check: setup ## measure, and fail when a ratio is worse than the committed one (ARGS=--measured uses the last results)
	@$(BIN)/python -m bench --size $(SIZE) --check $(ARGS)

docs: setup ## check links and build the documentation site in build/site
	@$(BIN)/python scripts/check_links.py
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

pictures: setup ## regenerate the screenshots and charts of the documentation
	@$(BIN)/python scripts/pictures.py

profiles: setup ## profile the three hottest paths and write docs/images/profile-*.svg
	@$(BIN)/python -m bench.profiles

package: setup ## build wheel and sdist into dist/ and test the wheel in a clean environment
	@scripts/package.sh

wheels: setup ## build, audit and test the wheel for every supported CPython (VERSIONS=3.14); fetch interpreters that are missing
	@scripts/wheels.sh

lock: setup ## update requirements.lock from pyproject.toml (ARGS=--upgrade for newer versions)
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
		--all-extras --group dev pyproject.toml -o requirements.lock $(ARGS)

audit-deps: setup ## check the locked packages: pins, hashes, licences, yanked or known-bad versions, advisories
	@$(BIN)/python scripts/audit_deps.py

api-snapshot: setup ## record the current public API in tests/unit/public_api.txt
	@$(BIN)/python scripts/api_snapshot.py > tests/unit/public_api.txt

clean: ## remove everything that was generated, including the environment
	rm -rf .venv .cache build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache src/*.egg-info
	find src tests scripts bench \( -name __pycache__ -o -name '_*.so' \) -prune -exec rm -rf {} + 2>/dev/null || true
