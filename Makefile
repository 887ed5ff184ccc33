# scylla-spark: `make` alone lists the targets.
SHELL       := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMPS := $(VENV)/.stamps
ARGS   ?=
PYTEST := $(BIN)/python -m pytest

# Containers often set it; the hundred processes of a test run would then each compile what they import.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup java demo test test-rest test-all test-deep unit api fuzz simulate faults lint format bench bench-peers notebooks screenshots docs docs-serve lock clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# ---- set-up: each step leaves a stamp, so a second run does nothing and needs no network ----

setup: | java $(STAMPS)/jars ## everything that runs and tests need: .venv, Python packages, jars
	@:

$(STAMPS)/venv:
	@$(PYTHON) -c '' 2>/dev/null || { echo "error: '$(PYTHON)' not found: install Python 3.11, 3.12 or 3.13 (Debian: apt-get install python3)" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: $$($(PYTHON) --version) is too old: Python 3.11 or newer is needed (choose one with: make setup PYTHON=python3.12)" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "error: $(PYTHON) cannot make virtual environments: apt-get install $(notdir $(PYTHON))-venv" >&2; exit 1; }
	@echo "[1/4] virtual environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS) && touch $@

# uv itself comes from the lock too, checked by hash, before it installs the rest.
$(STAMPS)/packages: requirements.lock $(STAMPS)/venv
	@echo "[2/4] Python packages (uv, then requirements.lock with hashes)"
	@awk '/^[^ ]/ { on = /^uv==/ } on' requirements.lock > $(STAMPS)/uv.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $(STAMPS)/uv.txt
	@VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --require-hashes -r requirements.lock
	@touch $@

$(STAMPS)/project: pyproject.toml $(STAMPS)/packages
	@echo "[3/4] scylla-spark itself, editable"
	@VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --no-deps --no-build-isolation --offline -e .
	@touch $@

# Where nobody may write beside the sources, or PYTHONDONTWRITEBYTECODE is set, every process would compile what it imports: half a
# second to a second of CPU each. Some packages carry files for other versions of Python; those fail, and nobody imports them.
$(STAMPS)/compiled: $(STAMPS)/project
	@$(BIN)/python -m compileall -qq -j 0 -x '/tests?/' $(VENV)/lib scylla_spark tools || true
	@touch $@

# Resolved with the Ivy that PySpark ships; "make setup" is the moment to hear about a missing Java, before the long part.
$(STAMPS)/jars: conf/jars-spark.xml conf/jars-broker.xml conf/jars.sha256 $(STAMPS)/project | $(STAMPS)/compiled
	@echo "[4/4] jars for Spark and the embedded broker"
	@$(BIN)/python -m scylla_spark.io.host.prepare
	@touch $@
	@echo "ready: try 'make demo' or 'make test'"

java:
	@java="$${JAVA_HOME:+$$JAVA_HOME/bin/}java"; \
	  command -v "$$java" >/dev/null || { echo "error: $$java not found: install Java 17 or 21 (Debian: apt-get install openjdk-17-jre-headless), or set JAVA_HOME" >&2; exit 1; }; \
	  major=$$("$$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1); \
	  [ "$${major:-0}" -ge 17 ] || { echo "error: $$java is version $${major:-unknown}: Java 17 or 21 is needed (Debian: apt-get install openjdk-17-jre-headless)" >&2; exit 1; }

# ---- daily work ----

demo: setup ## the tour: schedule, run and check tasks end to end (ARGS="..." are passed on)
	@$(BIN)/scylla-spark demo $(ARGS)

# Tests that share a deployment, a Spark session or a browser run in one process, the longest first (tests/support/xdist_folders.py).
# In each process tests/unit and tests/tables run before them (tests/conftest.py).
WORKERS ?= auto
FOLDERS := $(addprefix tests/,acceptance spark integration isolation browser simulation fuzz api tables unit)
TESTS   := $(PYTEST) -n $(WORKERS) --dist loadscope --no-loadscope-reorder --costs 20
QUICK   := (promise or unit or tables)
IN_CI   := not deep and not benchmark

test: setup ## every promise on real Kafka, Delta and Spark, and the tests of single parts: at most ten minutes on 2 cores
	@$(TESTS) -m "$(IN_CI) and $(QUICK)" --ignore-glob='*/deep' $(FOLDERS) $(ARGS)

test-rest: setup ## what test-all runs beyond test
	@$(TESTS) -m "$(IN_CI) and not $(QUICK)" --ignore-glob='*/deep' $(FOLDERS) $(ARGS)

test-all: setup ## everything that CI runs: test, then test-rest
	@$(MAKE) --no-print-directory test
	@$(MAKE) --no-print-directory test-rest

test-deep: setup ## what is too long for CI: searches for seeds, generated clients, schemathesis, clusters (half an hour or more)
	@$(TESTS) -m "deep and not benchmark" tests $(ARGS)
	@$(MAKE) --no-print-directory simulate

unit: setup ## the quick tests of single parts, side by side
	@$(PYTEST) -q -n auto --dist worksteal -m "not slow" tests/unit $(ARGS)

api: setup ## tests of the HTTP API and the dashboard without Kafka, and of tables without a JVM, side by side
	@$(PYTEST) -q -n auto --dist worksteal tests/api tests/tables $(ARGS)

INPUTS ?= 200000
fuzz: setup ## throw so many records of both topics at their readers, and play the life of leases as long: INPUTS=n
	@FUZZ=$(INPUTS) $(PYTEST) -q --durations=10 tests/fuzz tests/unit/test_lease_life.py $(ARGS)

SEEDS ?= 2000
STORIES ?= 500
FIRST ?= 0
simulate: setup ## play the engine and the planner against seeded faults: SEEDS=n FIRST=k STORIES=m
	@$(BIN)/python -m tests.simulation.run $(FIRST) $(SEEDS)
	@$(BIN)/python -m tests.simulation.plan_run $(FIRST) $(STORIES)

SEED ?= 1
faults: setup ## kill, freeze and starve real processes (half an hour or more), and renew docs/reliability.md: SEED=n ARGS="CASE…"
	@$(BIN)/python -m tests.faults.run --seed $(SEED) $(if $(filter-out --whole,$(ARGS)),,--report docs/reliability.md) $(ARGS)

notebooks: setup ## run the notebooks and store what they show
	@$(BIN)/python -m tests.support.notebooks

screenshots: setup ## renew docs/images with pictures of the dashboard (needs chromium)
	@$(BIN)/python -m tests.browser.screenshots

# The tools of the site have an environment and a lock of their own: what runs and what tests need neither.
MKDOCS := NO_MKDOCS_2_WARNING=1 $(VENV)/docs/bin/mkdocs

$(STAMPS)/docs: requirements-docs.lock $(STAMPS)/packages
	@$(PYTHON) -m venv $(VENV)/docs
	@VIRTUAL_ENV=$(VENV)/docs $(BIN)/uv pip install --quiet --require-hashes -r requirements-docs.lock
	@touch $@

docs: $(STAMPS)/docs $(STAMPS)/project ## the documentation site with the reference from the code, in build/site; a broken link is an error
	@$(MKDOCS) build --quiet --strict
	@echo "open build/site/index.html"

docs-serve: $(STAMPS)/docs $(STAMPS)/project ## serve the documentation site on loopback, and build it again when a page changes
	@$(MKDOCS) serve --strict --dev-addr 127.0.0.1:8001

lint: setup ## ruff (rules and format), the language of texts, and mypy
	@$(BIN)/ruff check .
	@$(BIN)/python tools/lint_language.py
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: setup ## let ruff reformat and mend what it can, lower the budgets of language, and renew the Grafana dashboard and the table of values
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .
	@$(BIN)/python tools/lint_language.py --lower
	@$(BIN)/python tools/grafana_dashboard.py
	@$(BIN)/python tools/helm_values.py

bench: setup ## all benchmarks (ARGS="..." are passed on)
	@$(BIN)/scylla-spark bench all $(ARGS)

bench-peers: setup ## other schedulers beside this one (ARGS="--only river,celery --write")
	@$(BIN)/python -m tests.benchmarks.peers $(ARGS)

# ---- for maintainers: renew what is pinned ----

lock: setup ## resolve requirements.lock and conf/jars.sha256 again, after a change of pyproject.toml or conf/jars-*.xml
	@$(BIN)/uv pip compile --quiet --upgrade --generate-hashes --universal --python-version 3.11 --extra api --extra spark --extra apprise --extra calendars --extra connect --extra otel --extra yaml --extra dev \
	  --no-header --no-annotate --no-emit-index-url --no-emit-find-links pyproject.toml -o requirements.lock
	@$(BIN)/uv pip compile --quiet --upgrade --generate-hashes --universal --python-version 3.11 --group pyproject.toml:docs \
	  --no-header --no-annotate --no-emit-index-url --no-emit-find-links -o requirements-docs.lock
	@if grep -n '://' requirements.lock requirements-docs.lock; then echo "error: a lock file contains an address" >&2; exit 1; fi
	@$(BIN)/python -m scylla_spark.io.host.prepare --lock

clean: ## remove .venv and all caches and builds of this checkout (the jar cache outside stays)
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis spark-warehouse metastore_db derby.log
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
