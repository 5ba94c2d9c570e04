# Everything here needs only Python 3.11 or newer and make; `make services` alone needs Go. `make` lists the targets.

PYTHON ?= python3
JOBS ?= 2
PYTEST_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
CORE := $(VENV)/.core
# What everything that runs code needs: also the C core, unless it is to be left out.
RUNS := $(if $(filter 0,$(SPANFOLD_NATIVE)),$(READY),$(CORE))
CACHE := .cache
UV := $(CACHE)/uv/bin/uv

# Tests start hundreds of processes, and each would compile everything again.
unexport PYTHONDONTWRITEBYTECODE
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_CACHE_DIR := $(CURDIR)/$(CACHE)/pip
export UV_CACHE_DIR := $(CURDIR)/$(CACHE)/uv-cache

.DEFAULT_GOAL := help
.PHONY: help setup demo test oldest services check fast lint bench format lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  PYTHON=python3.12 chooses the interpreter, JOBS=4 the test processes, PYTEST_ARGS='-k journal' what pytest gets."
	@echo "  SPANFOLD_NATIVE=0 leaves the C core out (make test SPANFOLD_NATIVE=0), SPANFOLD_NATIVE=1 fails where it cannot be built."

setup: $(RUNS) ## make .venv with the pinned dependencies and this checkout

# The stamp is newer than what it was made from, so a second run costs nothing.
$(READY): requirements.lock pyproject.toml
	@command -v $(PYTHON) >/dev/null || { \
		echo "spanfold needs Python 3.11 or newer, and there is no '$(PYTHON)' here. Install one, or name it: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "spanfold needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1). Name a newer one: make PYTHON=python3.12" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { \
		rm -rf $(VENV); echo "'$(PYTHON) -m venv' failed; on Debian and Ubuntu it is in the package python3-venv." >&2; exit 1; }
	@echo "Setting up $(VENV) with the pinned dependencies: once, some minutes, about 1.2 GB."
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

# Where there is no compiler it says so, tries again next time, and everything runs in Python.
$(CORE): $(READY) hatch_build.py $(wildcard src/spanfold/_native.h src/spanfold/*/_native.c)
	@$(BIN)/python hatch_build.py
	@! ls src/spanfold/*/_native.*.so >/dev/null 2>&1 || touch $@

demo: $(RUNS) ## run the bundled diagnose loop on real data and say where to look
	$(BIN)/spanfold demo

test: $(RUNS) ## run the whole suite
	$(BIN)/python -m pytest -n $(JOBS) --hypothesis-profile=thorough $(PYTEST_ARGS)

# Matplotlib and scikit-learn of that time call what later versions of two of their own dependencies warn of.
oldest: $(UV) ## run the whole suite with the oldest dependencies that pyproject.toml allows
	$(UV) venv --quiet --clear --python $(PYTHON) $(CACHE)/oldest
	printf 'pyparsing<3.3\nscipy<1.15\n' >$(CACHE)/as-old.txt
	$(UV) pip compile --quiet --resolution lowest-direct --python $(CACHE)/oldest --all-extras --group test --group check \
		--constraints $(CACHE)/as-old.txt --output-file $(CACHE)/oldest.txt pyproject.toml
	$(UV) pip install --quiet --python $(CACHE)/oldest -r $(CACHE)/oldest.txt pip editables
	$(UV) pip install --quiet --python $(CACHE)/oldest --no-deps --no-build-isolation -e .
	$(CACHE)/oldest/bin/python -m pytest -n $(JOBS) $(PYTEST_ARGS)

# The tests of tests/services run when these are there, and say what is missing when they are not.
services: ## get the collector and Jaeger that tests/services needs: from PATH, or built with Go 1.26, once
	collector/services.sh

check: $(RUNS) ## lint, types and the fast tests, side by side: what to run before a commit
	@$(MAKE) --no-print-directory -j 2 lint fast

fast: $(RUNS)
	$(BIN)/python -m pytest -n $(JOBS) -m "not slow and not integration" $(PYTEST_ARGS)

lint: $(READY) ## ruff, mypy and pyright
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pyright

bench: $(RUNS) ## measure the cost of a traced call, the journal's throughput and delivery
	$(BIN)/python -m bench

format: $(READY) ## let ruff fix and format the code
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

# One lock for every supported Python and platform: hashes and markers, and no word of where the files come from.
lock: $(UV) ## pin the newest versions that pyproject.toml allows
	$(UV) pip compile --quiet --universal --upgrade --generate-hashes --no-annotate --no-emit-index-url \
		--custom-compile-command "make lock" --python-version 3.11 --all-extras --group dev --output-file requirements.lock pyproject.toml

# Only these two targets need a resolver; pip is enough to install what is locked.
$(UV):
	$(PYTHON) -m venv $(CACHE)/uv
	$(CACHE)/uv/bin/python -m pip install --quiet uv

clean: ## remove .venv, caches and build output
	rm -rf $(VENV) $(CACHE) build dist src/*.egg-info
	rm -f src/spanfold/*/_native.*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
