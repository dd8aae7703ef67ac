"""The one file that knows where things live.

Everything is relative to the checkout (the folder that holds `gmc_core`, `notebooks`, `data` and `figures`), so
papermill, nbval, a Jupyter kernel and the shell agree whatever their working directory is. A `gmc_core` installed
without its checkout falls back to the working directory.
"""

from __future__ import annotations

from pathlib import Path

_CHECKOUT = Path(__file__).resolve().parents[1]
ROOT = _CHECKOUT if (_CHECKOUT / "pyproject.toml").exists() else Path.cwd()

DATA = ROOT / "data"
COMMITTED_RUNS = DATA / "runs"  # data/runs/<experiment>/: compact tables, committed
TINY_QWEN3 = DATA / "tiny_qwen3"  # the warm start, committed
WARM_STARTS = DATA / "warm_starts"  # those of the studies of length and of starting accuracy, committed
FIGURES = ROOT / "figures"  # png + pdf + provenance, committed
NOTEBOOKS = ROOT / "notebooks"

BUILD = ROOT / "build"  # ignored by git
BUILD_RUNS = BUILD / "runs"  # build/runs/<experiment>/<run_id>/: records while they grow
EXECUTED_NOTEBOOKS = BUILD / "notebooks"
SMOKE = BUILD / "smoke"  # scratch folder of the smoke profile
