# Everything a reader does is one of these targets. The first one that needs it creates .venv from the lock; a change of
# the lock, of pyproject.toml or of the checkout's place brings .venv up to date.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
PROFILE ?= cpu
ONLY ?=
JOBS ?= 2

VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed-$(shell { cat requirements-lock.txt pyproject.toml; pwd; } | cksum | cut -d ' ' -f 1)
RUN_NOTEBOOKS := $(PY) -m gmc_core.reporting.run_notebooks
EXACT_NOTEBOOKS := notebooks/0[1-4]_*.ipynb

# One thread per process: two processes on two cores beat two threads each. The environment's own kernel before a user's.
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false
export JUPYTER_PREFER_ENV_PATH ?= 1

.PHONY: help setup figures test lint experiments bench lab outputs readme lock clean distclean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo '  variables: PYTHON=python3.11  PROFILE=smoke|cpu|gpu  ONLY="02 03" (figures) or ONLY=name (experiments, bench)'

setup: $(STAMP)  ## create or update .venv from the lock

$(STAMP):
	@if ! $(PY) -m pip --version >/dev/null 2>&1; then \
	  command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) not found: install Python 3.11, 3.12 or 3.13, or name one: make PYTHON=/path/to/python3.11" >&2; exit 1; }; \
	  $(PYTHON) -c 'import sys; v = sys.version_info[:2]; (3, 11) <= v < (3, 14) or sys.exit(f"$(PYTHON) is Python {v[0]}.{v[1]}, and the pinned packages need 3.11, 3.12 or 3.13; name one: make PYTHON=python3.11")'; \
	  echo "creating $(VENV) with $$($(PYTHON) --version)"; \
	  $(PYTHON) -m venv --clear $(VENV); \
	fi
	@echo "installing the $$(grep -c == requirements-lock.txt) packages of requirements-lock.txt into $(VENV) (one to a few minutes the first time)"
	@$(PY) -m pip install --quiet --disable-pip-version-check --requirement requirements-lock.txt
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@$(PY) -c 'import matplotlib.font_manager'  # builds the font cache now, not inside a notebook's output
	@rm -f $(VENV)/.installed-*
	@touch $@

figures: $(STAMP)  ## run the notebooks headlessly and draw every figure (PROFILE, ONLY)
	@$(RUN_NOTEBOOKS) --profile $(PROFILE) $(if $(ONLY),--only $(ONLY))
	@$(if $(ONLY),,echo; echo 'What of the abstract holds here (README, "What holds"):'; $(PY) -m gmc_core.reporting.claims)

test: export HF_HUB_OFFLINE := 1
test: lint  ## lint, tests, all notebooks in the smoke profile, outputs of 01-04 checked
	MPLBACKEND=Agg $(PY) -m pytest -q -n $(JOBS) --dist loadfile tests
	$(RUN_NOTEBOOKS) --profile smoke --force
	GMC_FIGURES=build/nbval/figures $(PY) -m pytest -q -n $(JOBS) --dist loadfile --nbval-lax --nbval-current-env $(EXACT_NOTEBOOKS)

lint: $(STAMP)  ## ruff
	$(PY) -m ruff check .

experiments: $(STAMP)  ## recompute the run records (ONLY=name for one experiment)
	@$(PY) -m gmc_core.experiments $(if $(ONLY),--only $(ONLY))

bench: $(STAMP)  ## measure updates per second and the cost of the weights
	@$(PY) -m benchmarks $(ONLY)

lab: $(STAMP)  ## JupyterLab on the notebooks
	@$(PY) -m jupyterlab --notebook-dir=notebooks

outputs: $(STAMP)  ## renew the committed outputs of notebooks (ONLY="01 02", default: 01 to 04)
	@$(PY) -m gmc_core.reporting.notebook_outputs $(or $(ONLY),01 02 03 04)

readme: $(STAMP)  ## write the generated tables of README.md anew
	@$(PY) -m gmc_core.reporting.readme_tables

lock: $(STAMP)  ## resolve the extras of pyproject.toml anew and write requirements-lock.txt
	@$(PYTHON) -m venv --clear build/lock-venv
	@build/lock-venv/bin/python -m pip install --quiet ".[notebooks,test]" "$$(grep '^torch==' requirements-lock.txt)"
	@{ grep '^#' requirements-lock.txt; build/lock-venv/bin/python -m pip freeze --exclude gmc-core \
	  | grep -viE '^(nvidia-|cuda-|triton)' | sed -E 's/\+[a-z0-9]+$$//' | LC_ALL=C sort -f; } > build/lock.txt
	@mv build/lock.txt requirements-lock.txt
	@rm -rf build/lock-venv

clean:  ## remove executed notebooks, scratch and caches; records of runs (build/runs) stay
	@rm -rf build/notebooks build/smoke build/nbval .pytest_cache .ruff_cache .hypothesis
	@find gmc_core tests benchmarks notebooks \( -name __pycache__ -o -name .ipynb_checkpoints \) -prune -exec rm -rf {} + 2>/dev/null || true

distclean: clean  ## remove .venv and everything under build, computed records included
	@rm -rf $(VENV) build ./*.egg-info
