# `make help` lists the targets.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
INPUTS := pyproject.toml constraints.txt

RUN := $(VENV)/.installed-run
DEV := $(VENV)/.installed-dev
PLOTS := $(VENV)/.installed-plots
DOCS := $(VENV)/.installed-docs
BROWSER := $(VENV)/.installed-browser
TYPES := $(VENV)/.installed-types

# Bytecode of sources and tests is kept, also where the environment asks for none: hundreds of tests start a process.
KEPT := PYTHONDONTWRITEBYTECODE=

# A processor without 512-bit vectors, for all that is compiled and for linear algebra. numba takes the features of this
# machine as well unless they are set to none.
OLDER := HIEROPO_BACKEND=compiled OPENBLAS_CORETYPE=Haswell NUMBA_CPU_NAME=x86-64-v3 NUMBA_CPU_FEATURES=
LAWS := reproduce/test_als evaluation/test_bounds logging_policy/test_cells logging_policy/test_choice_logits \
    model/crossed/test_posterior estimation/test_reml evaluation/test_evaluation doctor/test_extremes \
    policies/test_gating estimation/hyper/test_intervals logging_policy/test_incumbents _kernels/test_kernels \
    laws/test_moments_laws ope/test_off_policy laws/test_recentring policies/test_lower_bound \
    laws/test_posterior_laws evaluation/test_predictive logging_policy/test_propensities \
    laws/test_reward_origin estimation/hyper/test_sampled estimation/crossed/test_mixture ope/test_shrinkage \
    passes/test_summing _utils/test_ties evaluation/test_value_distributions estimation/test_tree_estimation \
    estimation/hyper/test_uncertainty ope/test_value_intervals learners/test_weights \
    evaluation/test_certificates

.PHONY: help demo docs docs-serve browser chromium peers benchmarks lme4 reproduce test lint types public-types contracts pytest quick portable format clean postgresql java
.DELETE_ON_ERROR:

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' Makefile

demo: $(RUN)  ## install what is needed, then run the demonstration
	$(BIN)/hieropo demo

reproduce: $(PLOTS)  ## make the figures of the paper in the folder reproduced (DATA=ml-1m.zip: MovieLens too)
	$(BIN)/hieropo reproduce synthetic -o reproduced/synthetic
	$(if $(DATA),$(BIN)/hieropo reproduce movielens --data "$(DATA)" -o reproduced/movielens)

docs: $(DOCS)  ## build the documentation in the folder site: tutorials run, links and anchors checked
	$(BIN)/python scripts/site.py -o site

docs-serve: docs  ## build the documentation and show it at http://localhost:8000
	$(BIN)/python -m http.server --directory site --bind 127.0.0.1 8000

browser: docs $(BROWSER) chromium  ## reports and the site in chromium: errors, axe, phone width; prints times
	HIEROPO_BROWSER=1 $(BIN)/python -m pytest -s -q tests/browser

peers: $(PLOTS) lme4  ## hieropo beside other tools on the same logs: docs/results/peers.md (QUICK=1: ten minutes)
	$(BIN)/python benchmarks/peers/run.py
	$(BIN)/python benchmarks/peers/render.py
	$(BIN)/python benchmarks/readme.py

benchmarks: $(DEV) lme4  ## all programs of benchmarks, half an hour on two quiet processors, then their tables
	$(BIN)/python benchmarks/all.py

test: $(DEV)  ## every check: lint, types, import contracts, tests
	$(MAKE) --no-print-directory lint
	$(MAKE) --no-print-directory types
	$(MAKE) --no-print-directory public-types
	$(MAKE) --no-print-directory contracts
	$(MAKE) --no-print-directory pytest

lint: $(DEV)  ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(DEV)  ## mypy
	$(BIN)/mypy

# The checker looks for an installed package: it gets an environment with a copy, beside the libraries of this one.
public-types: $(TYPES)  ## the completeness of the public types, by basedpyright
	rm -rf build/types && $(BIN)/python -m venv --without-pip build/types
	site=$$(echo build/types/lib/python*/site-packages) && $(PIP) install -q --no-deps --target $$site . && \
	    $(BIN)/python -c 'import site; print(site.getsitepackages()[0])' > $$site/libraries.pth
	PATH="$$PWD/build/types/bin:$$PATH" VIRTUAL_ENV="$$PWD/build/types" \
	    $(BIN)/basedpyright --verifytypes hieropo --ignoreexternal > build/types/report.txt || { cat build/types/report.txt; exit 1; }

contracts: $(DEV)  ## the import contracts of ARCHITECTURE.md
	$(BIN)/lint-imports

pytest: $(DEV) postgresql java  ## all tests
	$(KEPT) $(BIN)/python -m pytest -n auto --dist worksteal

quick: $(DEV) postgresql java  ## the tests without those marked slow
	$(KEPT) HYPOTHESIS_PROFILE=$${HYPOTHESIS_PROFILE:-quick} $(BIN)/python -m pytest -n auto --dist worksteal -m "not slow"

portable: $(DEV)  ## the tests of kernels and laws as an older processor runs them
	$(KEPT) $(OLDER) $(BIN)/python -m pytest -n auto --dist worksteal $(patsubst %,tests/%.py,$(LAWS))

format: $(DEV)  ## let ruff rewrite the sources
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove what the other targets made
	rm -rf $(VENV) demo site reproduced build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# $(call package,TEST,NAME,MESSAGE): install a Debian package unless the test passes; where that cannot be done, say the
# message and end with the exit status $(4), 0 if it is not given.
define package
	@{ $(1); } >/dev/null 2>&1 || { \
	    if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	        apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $(2); \
	    else \
	        echo "$(3) (on Debian: the package $(2))." >&2; exit $(or $(4),0); \
	    fi; }
endef

postgresql:  # a server for tests, which start it for themselves; without one its tests are skipped, saying so
	$(call package,command -v initdb || ls /usr/lib/postgresql/*/bin/postgres,postgresql,No PostgreSQL server is installed)

java:  # for the tests of Spark; without it they are skipped, saying so
	$(call package,command -v java,default-jre-headless,No Java runtime is installed)

lme4:  # one of the tools of `make peers`, whose table names it where it is not there
	$(call package,command -v Rscript,r-cran-lme4,R is not installed; lme4 is left out)

chromium:  # for `make browser`
	$(call package,command -v chromium || command -v google-chrome,chromium,No chromium is installed,1)

# A virtual environment that works. Debian keeps ensurepip in a package of its own.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "hieropo needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1)." \
	         "Name another one: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(call package,$(PYTHON) -c 'import ensurepip; import venv',python3-venv,$(PYTHON) cannot make virtual environments,1)
	$(PYTHON) -m venv --clear $(VENV) || { rm -rf $(VENV); exit 1; }

$(RUN): $(INPUTS) | $(BIN)/python
	$(PIP) install -q -c constraints.txt -e .
	@touch $@

$(PLOTS): $(INPUTS) | $(BIN)/python
	$(PIP) install -q -c constraints.txt -e '.[plots]'
	@touch $(RUN) $@

$(DOCS): $(INPUTS) | $(BIN)/python
	$(PIP) install -q -c constraints.txt -e '.[docs]'
	@touch $(RUN) $(PLOTS) $@

$(DEV): $(INPUTS) | $(BIN)/python
	$(PIP) install -q -c constraints.txt -e '.[dev]'
	@touch $(RUN) $(PLOTS) $@

$(BROWSER): $(INPUTS) | $(BIN)/python
	$(PIP) install -q -c constraints.txt -e '.[dev,browser]'
	@touch $(RUN) $(PLOTS) $(DEV) $@

$(TYPES): $(INPUTS) | $(BIN)/python
	$(PIP) install -q -c constraints.txt -e '.[dev,types]'
	@touch $(RUN) $(PLOTS) $(DEV) $@
