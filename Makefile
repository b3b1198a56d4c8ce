# The commands of this repository; each works from a clean clone and can be run again.
# What they make, `make clean` removes: .venv, .lake (the demo lake), .dagster (Dagster's home).

PYTHON ?= python3
PORT ?= 3000
VENV := .venv/bin
INSTALLED := .venv/.installed
export DAGSTER_HOME := $(CURDIR)/.dagster

# Asked only by the targets that need it; `make` adds nothing to an $(error) but its own place.
JAVA_PROBLEM = $(shell .ci/require-java)
PYTHON_PROBLEM = $(shell $(PYTHON) -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 10))' \
	>/dev/null 2>&1 || echo "deltaweave needs Python 3.10 or newer with its venv module as" \
	"$(PYTHON): install one (Debian: apt-get install python3-venv) or name it, make PYTHON=…")

.NOTPARALLEL:
.PHONY: help demo ui test test-all check clean java

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: java $(INSTALLED) $(DAGSTER_HOME)/dagster.yaml ## land TPC-DS returns and merge what is new, through Dagster
	@$(VENV)/python -m assets.demo

ui: java $(INSTALLED) $(DAGSTER_HOME)/dagster.yaml ## open the Dagster UI on the demo lake (PORT=3000)
	@$(VENV)/dagster dev --workspace workspace.yaml --port $(PORT)

test: java $(INSTALLED) ## run the tests
	@$(VENV)/python -m pytest -q

test-all: test ## run the tests, slow ones included

check: $(INSTALLED) ## format, lint, types, import contracts
	@$(VENV)/ruff format --check
	@$(VENV)/ruff check
	@$(VENV)/mypy
	@$(VENV)/lint-imports

clean: ## remove all that these commands made
	rm -rf .venv .lake .dagster .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	rm -rf .hypothesis spark-warehouse metastore_db derby.log

java:
	@$(if $(JAVA_PROBLEM),$(error $(JAVA_PROBLEM)))

$(INSTALLED): pyproject.toml
	@$(if $(PYTHON_PROBLEM),$(error $(PYTHON_PROBLEM)))
	@echo "Installing deltaweave into .venv (a minute or two the first time)"
	@$(PYTHON) -m venv .venv
	@$(VENV)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

# Written once, then yours to edit.
$(DAGSTER_HOME)/dagster.yaml:
	@mkdir -p $(@D)
	@printf '%s\n' \
		'# One run at a time: each starts a JVM, and all merge into the same tables.' \
		'concurrency: {runs: {max_concurrent_runs: 1}, pools: {default_limit: 1}}' \
		'telemetry: {enabled: false}' >$@
