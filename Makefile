# The whole project, in small steps. Each step is idempotent, quick when there is nothing to do, and says what it does.

PYTHON ?= python3
BIN := .venv/bin
IMAGE ?= python
# Images and sandboxes need root; the scripts that install ask for it only when something is missing.
ROOT := $(if $(filter 0,$(shell id -u)),,sudo --preserve-env)
TESTS ?= tests
# The order of tests is random, but the same in every run that does not choose another: a failure can be repeated.
SEED ?= 20261129

.DEFAULT_GOAL := help
.PHONY: help run test check setup system venv runsc image web webtest lint format types pytest lock clean

help:  ## show these lines
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

run: setup  ## set up, start the server on 127.0.0.1, run the first analysis against it, keep serving
	@$(ROOT) scripts/run

test: setup check webtest pytest  ## set up, check, run all tests

check: lint format types  ## ruff, ruff format, mypy --strict

setup: system venv runsc image web  ## everything that run and test need

system:  ## system packages (apt), only those that are missing
	@PYTHON=$(PYTHON) scripts/install-system

venv: system  ## .venv with the locked Python packages, and Cloche itself in editable form
	@PYTHON=$(PYTHON) scripts/install-venv

runsc: system  ## gVisor's runsc at /usr/local/lib/cloche/runsc
	@scripts/install-runsc

image: venv  ## the default sandbox image; IMAGE=name for another one
	@$(ROOT) $(BIN)/cloche image build $(IMAGE)

web:  ## the pages, into the server's package (needs Node; without it they are left out)
	@scripts/web

webtest: web  ## the tests of the pages
	@echo 'webtest: vitest, tsc'
	@! [ -d web/node_modules ] || (cd web && npm run --silent check && npm run --silent test -- --reporter=dot)

lint: venv  ## ruff's rules
	@echo 'lint: ruff check'
	@$(BIN)/ruff check .

format: venv  ## ruff's formatting, checked only
	@echo 'format: ruff format --check'
	@$(BIN)/ruff format --check .

types: venv  ## mypy --strict
	@echo 'types: mypy --strict'
	@$(BIN)/mypy

pytest: setup  ## the tests; TESTS=path for some of them
	@echo 'pytest: $(TESTS)'
	@$(ROOT) $(BIN)/python -m pytest --randomly-seed=$(SEED) --durations=25 --durations-min=3 $(TESTS)

lock: venv  ## write the hashed lock files anew
	@scripts/lock

clean:  ## remove what the checkout's own tools made: .venv and caches
	rm -rf .venv .mypy_cache .ruff_cache .hypothesis
