# The commands for a working copy. They need Python 3.11+ and make; tools/bootstrap installs the rest into .venv.
# Written for GNU make 3.81, which macOS has.

TARGETS := help demo test minimal check format bench soak agents newcomer client compiled docs dist clean
BIN := .venv/bin
CODE := $(wildcard src tests demo benchmarks examples tools setup.py)
# Or every process that a test starts would compile again all that it imports.
unexport PYTHONDONTWRITEBYTECODE
# The compiled core, as an installed Fleetgate has it.
COMPILED := PYTHONPATH=$(CURDIR)/build/compiled
WORDS :=

.DEFAULT_GOAL := help
.PHONY: $(TARGETS)

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' Makefile

demo: ## Show a dozen agents against a limited provider, without and with Fleetgate (no network)
	@sh tools/bootstrap demo
	@$(BIN)/python -m demo $(ARGS)

test: ## Lint, check types and run all tests (some of them: ARGS="-k queue")
	@sh tools/browser & sh tools/bootstrap dev; code=$$?; wait; exit $$code
ifneq ($(ARGS),)
	$(BIN)/python -m pytest $(ARGS)
else
	$(BIN)/python tools/run_tests.py
endif

minimal: ## All tests, as on a machine where nothing was set up (some of them: ARGS="tests/cli")
	@sh tools/browser & sh tools/bootstrap dev; code=$$?; wait; exit $$code
	@sh tools/compiled
	@$(BIN)/python -m compileall -q src tests
	sh tools/minimal_environment $(ARGS)

check: ## Check lint, format, types and layers
	@sh tools/bootstrap dev
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy $(filter-out setup.py,$(CODE))
	$(BIN)/lint-imports --no-cache

format: ## Format the code and fix what ruff can fix
	@sh tools/bootstrap dev
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

bench: ## Run the benchmarks, or one of them: `make bench adapt`; ARGS="..." passes options
	@sh tools/bootstrap dev,bench
	@sh tools/compiled
	$(COMPILED) $(BIN)/python -m benchmarks $(WORDS) $(ARGS)

soak: ## Run the long tests: many rounds of kill -9, and five minutes of load on the service
	@sh tools/bootstrap dev
	FLEETGATE_SOAK=20 FLEETGATE_TEST_CROWD=200 $(BIN)/python -m pytest tests/processes/test_storm.py tests/processes/test_stop.py tests/processes/test_run_crashes.py tests/processes/test_run_crowds.py tests/processes/test_jobs_chaos.py tests/processes/test_jobs_give_way.py tests/simulation/test_preemption_steps.py tests/processes/test_postgres_chaos.py tests/processes/test_postgres_partition.py tests/processes/test_postgres_cutoff.py tests/processes/test_postgres_failover.py tests/property/test_postgres_engine.py tests/simulation/test_crash_simulation.py tests/library/test_library_adapt.py tests/api/test_soak.py tests/proxy/test_disconnects.py tests/proxy/test_token_rates.py tests/proxy/test_played_scenarios.py --timeout 3600 $(ARGS)

agents: ## Test real agents against a fake provider; downloads them into .cache. ARGS="--write-docs" writes docs/agents.md
	@sh tools/bootstrap dev
	FLEETGATE_AGENTS=1 $(BIN)/python -m pytest tests/agents $(ARGS)

client: ## Generate the TypeScript client from the OpenAPI document; needs npm
	@sh tools/bootstrap dev
	$(BIN)/python tools/gen_typescript_client.py $(ARGS)

newcomer: ## The first minutes of a new user: clone, install, init, three agents, stop, dashboard. Needs the network
	@sh tools/browser & sh tools/bootstrap dev; code=$$?; wait; exit $$code
	FLEETGATE_NEWCOMER=1 $(BIN)/python -m pytest -s tests/newcomer $(ARGS)

compiled: ## Install into build/compiled as `pip install .` does, and test what is compiled there
	@sh tools/compiled
	$(COMPILED) $(BIN)/python -m pytest tests/golden tests/unit/test_core_*.py tests/property/test_core_*.py tests/simulation tests/front tests/proxy $(ARGS)

docs: ## Build the site of the documentation into build/site
	@sh tools/bootstrap dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

dist: ## Build what a release consists of: sdist, wheel and SBOM, checked. ARGS=--compiled: also a wheel for this machine
	@sh tools/dist $(ARGS)

clean: ## Remove caches and build products, not .venv
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .coverage .coverage.*
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +

# The words after `bench` name benchmarks: they go to its command line and are not targets.
ifeq ($(firstword $(MAKECMDGOALS)),bench)
WORDS := $(filter-out $(TARGETS),$(MAKECMDGOALS))
ifneq ($(WORDS),)
.PHONY: $(WORDS)
$(WORDS): bench
	@:
endif
endif
