# The commands of this repository; each works from a clean clone and can be run again.
# `make clean` removes what they create: .venv, .lake (the demo lake), .dagster (Dagster's home),
# .bench (the benchmark's data and tables), .site (the documentation's site), .matrix (environments
# of other pairs of Spark and Delta).

PYTHON ?= python3
PORT ?= 3000
WORKERS ?= 2
N ?= 500
SHARE ?= 1/1
ORDER ?= 0
ON ?= local
PLACES := local cluster object_store
VENV := .venv/bin
# Modules, and the tests in each, in an order that a number draws (pytest-randomly). What another
# number finds is a defect of a test.
PYTEST = $(VENV)/python -m pytest -q --randomly-seed=$(ORDER) --durations=40 --durations-min=5
INSTALLED := .venv/.installed
# Each place has its own tables, and so its own runs and Dagster home.
export DAGSTER_HOME := $(CURDIR)/.dagster$(if $(filter-out local,$(ON)),/$(ON))
# Starts the place, runs the command after it there, and stops the place.
IN_ENVIRONMENT = $(if $(filter-out local,$(ON)),$(VENV)/python -m assets.demo_environments $(ON))
# What Python compiles of a module is kept with the installation, whatever the environment says: a
# process of Dagster or dbt starts in a third of the time.
export PYTHONDONTWRITEBYTECODE :=
export PYTHONPYCACHEPREFIX := $(CURDIR)/.venv/pycache
# An archive of the classes that the installation's first Spark loaded (.ci/first-session). Without
# it, or with another Java, a JVM loads the classes from their jars.
export SPARK_SUBMIT_OPTS += "-XX:SharedArchiveFile=$(CURDIR)/.venv/spark.jsa"

# Evaluated only by the targets that need them; to an $(error), `make` adds only its own location.
JAVA_PROBLEM = $(shell .ci/require-java)
PYTHON_PROBLEM = $(shell $(PYTHON) -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' \
	>/dev/null 2>&1 || echo "Developing deltaweave needs Python 3.11 or newer with its venv module as" \
	"$(PYTHON): install one (Debian: apt-get install python3-venv) or name it, make PYTHON=…")

.NOTPARALLEL:
.PHONY: help demo demo-cdc land ui docs test test-slow test-all test-matrix delta-suite torture record-oracle record-debezium fuzz screenshots check lock changelog clean java place

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: place java $(INSTALLED) $(DAGSTER_HOME)/dagster.yaml ## land sample data, merge it through Dagster and by Delta's own MERGE, compare (ON=cluster, ON=object_store)
	@$(IN_ENVIRONMENT) $(VENV)/python -m assets.demo

demo-cdc: java $(INSTALLED) ## change events through Kafka into a table, read at once and merged later
	@$(VENV)/python -m assets.cdc_demo

land: java $(INSTALLED) ## land the next month of the demo's returns, for the landing sensor or the next make demo
	@$(VENV)/python -m assets.demo_data --next

ui: place java $(INSTALLED) $(DAGSTER_HOME)/dagster.yaml ## open the Dagster UI on the demo lake (PORT=3000, ON as for demo)
	@# Dagster advises `dg dev` instead, which is for projects of `dg`: this repository is none.
	@PYTHONWARNINGS='ignore:Function `dev_command` is superseded' \
		$(IN_ENVIRONMENT) $(VENV)/dagster dev --workspace workspace.yaml --port $(PORT)

docs: .venv/.docs ## build the documentation as a site, .site/html (needs npm); broken links and anchors fail
	@$(VENV)/python .ci/site

test: java $(INSTALLED) ## run the tests (WORKERS=2 processes, each with a Spark of 3 GiB; ORDER=… shuffles them otherwise)
	@echo "Collecting the tests and starting Spark: the first results come in about a minute"
	@$(PYTEST) --numprocesses $(WORKERS) -m 'not full_matrix and not minutes and not torture'

# Many of the tests that take longer start JVMs that end before the optimizing compiler and several
# threads for collections pay off. Without the compiler, the JVM would keep less room for compiled
# code than Spark needs. It would collect each time that more classes are loaded.
test-slow: export SPARK_SUBMIT_OPTS += -XX:TieredStopAtLevel=1 \
	-XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC -XX:MetaspaceSize=256m
test-slow: java $(INSTALLED) ## run the tests that take longer: a browser, a cluster, Kafka, kills, rivals, several runs, drawn merges (SHARE=2/6: a sixth)
	@DELTAWEAVE_SHARE=$(SHARE) $(PYTEST) --numprocesses $(WORKERS) -m 'minutes and not full_matrix and not torture'

test-all: java $(INSTALLED) ## run the tests beside Delta's own MERGE, and every merge case in every layout (hours)
	@DELTAWEAVE_ORACLE=live $(PYTEST) --numprocesses $(WORKERS)

test-matrix: java $(INSTALLED) ## run the merge cases on every pair of Spark and Delta that is supported (hours; PAIRS=4.1.1+4.3.1)
	@WORKERS=$(WORKERS) $(VENV)/python .ci/test-matrix $(PAIRS)

delta-suite: java $(INSTALLED) ## run Delta's own Python tests of DeltaTable in an enabled session (SOURCES=a clone of delta-io/delta)
	@$(VENV)/python .ci/delta-suite $(SOURCES)

torture: java $(INSTALLED) ## rivals, kills, lost workers, partitions in random order, in full (hours; SEED=… draws others)
	@DELTAWEAVE_TORTURE=full DELTAWEAVE_TORTURE_SEED=$(or $(SEED),18) \
		$(PYTEST) -m torture

record-oracle: java $(INSTALLED) ## record again what Delta's own MERGE does in each merge case (or in those of CASES="NAME …")
	@DELTAWEAVE_ORACLE=live $(VENV)/python -m tests.merge_cases.record $(CASES)

record-debezium: java $(INSTALLED) ## record again what Debezium's connectors send (needs PostgreSQL and MariaDB: apt-get install postgresql mariadb-server)
	@$(VENV)/python -m tests.deltaweave.changes.debezium_messages.record

fuzz: export SEED := $(or $(SEED),$(shell date +%s))
fuzz: java $(INSTALLED) ## run N=500 drawn merges and compare each with built-in MERGE (SEED=… runs the same again)
	@echo "SEED=$(SEED)"
	@DELTAWEAVE_FUZZ_EXAMPLES=$(N) DELTAWEAVE_FUZZ_SEED=$(SEED) $(PYTEST) \
		--exitfirst --numprocesses $(WORKERS) tests/properties

screenshots: java $(INSTALLED) ## make the pictures of the UI in docs/demo.md again (needs Chromium)
	@DELTAWEAVE_SCREENSHOTS=docs/images $(PYTEST) tests/end_to_end/test_browser.py

check: $(INSTALLED) ## format, lint, types, import contracts, words, advisories of installed packages
	@$(VENV)/ruff format --check
	@$(VENV)/ruff check
	@$(VENV)/mypy
	@$(VENV)/lint-imports
	@$(VENV)/python .ci/words
	@$(VENV)/python .ci/audit

lock: $(INSTALLED) ## renew constraints.txt, the releases of all packages that make installs
	@$(VENV)/pip install --quiet --disable-pip-version-check 'uv>=0.13,<0.14'
	@{ sed '/^[^#]/d' constraints.txt; $(VENV)/uv pip compile --quiet --universal --python-version 3.11 \
		--extra dev --no-annotate --no-header --no-emit-package pip pyproject.toml; } >constraints.new
	@mv constraints.new constraints.txt

changelog: $(INSTALLED) ## put the sentences of changelog.d into CHANGELOG.md, under VERSION=…
	@$(VENV)/pip install --quiet --disable-pip-version-check 'towncrier>=26.9,<27'
	@$(VENV)/towncrier build --yes --version $(VERSION)

clean: ## remove everything that these commands made
	rm -rf .venv .lake .dagster .bench .site .matrix .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	rm -rf .hypothesis spark-warehouse metastore_db derby.log

place:
	@$(if $(and $(filter 1,$(words $(ON))),$(filter $(PLACES),$(ON))),,$(error \
		ON is '$(ON)': known are $(PLACES)))

java:
	@$(if $(JAVA_PROBLEM),$(error $(JAVA_PROBLEM)))

$(INSTALLED): pyproject.toml constraints.txt
	@$(if $(PYTHON_PROBLEM),$(error $(PYTHON_PROBLEM)))
	@echo "Installing deltaweave into .venv: a few minutes the first time, and about 1 GB to download"
	@echo "  1 of 3: a virtual environment"
	@$(PYTHON) -m venv .venv
	@echo "  2 of 3: the Python packages"
	@# Python compiles modules when it first imports them; of most packages it never imports most.
	@$(VENV)/python .ci/progress .venv/pip.log $(VENV)/pip install --no-compile --disable-pip-version-check \
		--constraint constraints.txt --editable '.[dev]'
	@echo "  3 of 3: Delta's jars, by a first start of Spark"
	@# One session fetches Spark's jars now, because concurrent downloads would corrupt each other.
	@$(VENV)/python .ci/progress .venv/jars.log $(VENV)/python .ci/first-session
	@touch $@

.venv/.docs: $(INSTALLED)
	@$(VENV)/python .ci/progress .venv/docs.log $(VENV)/pip install --disable-pip-version-check --editable '.[docs]'
	@touch $@

# Written only if it is missing, so that you can edit it.
$(DAGSTER_HOME)/dagster.yaml:
	@mkdir -p $(@D)
	@printf '%s\n' \
		'# One run at a time: each starts a JVM, and all merge into the same tables.' \
		'concurrency: {runs: {max_concurrent_runs: 1}, pools: {default_limit: 1}}' \
		'telemetry: {enabled: false}' \
		'# The invitation to a newsletter, over the first page that is opened.' \
		'nux: {enabled: false}' \
		'run_coordinator: {module: dagster._core.run_coordinator, class: QueuedRunCoordinator, config: {dequeue_interval_seconds: 1}}' >$@
