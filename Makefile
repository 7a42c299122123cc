SHELL := /bin/bash
BOOTSTRAP := tests/tools/bootstrap.sh
RUN := .venv/bin/python tests/tools/run_tests.py
# Scenarios at a time in `make test`; two of them want 16 GiB of memory.
JOBS ?= 1

.DEFAULT_GOAL := help
.PHONY: help env test-env test test-fast lint unit fmt docs download-faults runbooks interruptions night launches rehearsal rehearsal-down clean

help: ## Print the targets
	@awk -F ':.*## ' '/^[a-z%-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

env: ## Make .venv: ansible-core and the tools, as locked
	@$(BOOTSTRAP) .venv

test-env:
	@$(BOOTSTRAP) .venv .venv-2.19 .venv-3.9 tools

test: test-env ## Run every gate and every test, on test hosts too where they can run (JOBS=2: two hosts at a time)
	@$(RUN) --jobs $(JOBS)

test-fast: test-env ## The same without test hosts
	@$(RUN) --no-hosts

lint: test-env ## Linters only
	@$(RUN) --only ruff format yamllint mypy changelog ansible-lint

unit: test-env ## Unit tests only, on every supported Python and ansible-core
	@$(RUN) --only 'unit*'

fmt: env ## Format the Python files and repair what ruff can
	@.venv/bin/ruff check --fix-only --quiet
	@.venv/bin/ruff format --quiet

docs: env ## Make the reference of modules and roles: build/docs/index.html
	@tests/tools/docs.sh

download-faults: env ## Write docs/download-faults.md from what the download does with every fault
	@.venv/bin/pytest --quiet tests/download --write-table

runbooks: env ## Write docs/runbooks from what the diagnosis and the preflight know
	@PYTHONPATH=collections .venv/bin/python -m ansible_collections.llmops.vllm.tests.tools.runbooks

interruptions: test-env ## Interrupt rollouts at 20 points of another seed each time, and see how each ends
	@PATH="$(CURDIR)/.venv/bin:$$PATH" INTERRUPTIONS=$${INTERRUPTIONS:-20} INTERRUPTIONS_SEED=$${INTERRUPTIONS_SEED:-$$(date +%j)} \
	  tests/rig/prepare.sh run molecule test -s interruption

night: test-env ## What takes too long for `make test`: launches that fail in every phase, rollouts that are interrupted
	@PATH="$(CURDIR)/.venv/bin:$$PATH" tests/rig/prepare.sh run molecule test -s gate
	@$(MAKE) --no-print-directory interruptions

launches: env ## Try the launches of tests/launches on the real engine, and write docs/preflight-launches.md (as root)
	@PYTHONPATH=collections .venv/bin/python -m ansible_collections.llmops.vllm.tests.launches.launches

rehearsal: env ## Start hosts in containers and deploy to them, as a user would
	@PATH="$(CURDIR)/.venv/bin:$$PATH" tests/rig/rehearsal.sh up

rehearsal-down: ## Remove the hosts of the rehearsal
	@PATH="$(CURDIR)/.venv/bin:$$PATH" tests/rig/rehearsal.sh down

bench-%: env ## Run the benchmark tests/benchmarks/NAME.py
	@if [[ ! -f tests/benchmarks/$*.py ]]; then \
	  echo "There is no benchmark '$*'. There are:" $$(cd tests/benchmarks 2>/dev/null && basename --suffix=.py -- [!_]*.py 2>/dev/null) >&2; \
	  exit 2; \
	fi
	@.venv/bin/python tests/benchmarks/$*.py

clean: ## Remove environments, caches and logs of this checkout
	@rm -rf .venv .venv-2.19 .venv-3.9 .cache build .ansible .mypy_cache .pytest_cache .ruff_cache tests/output *.tar.gz
