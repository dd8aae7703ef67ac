"""A run made here and now beside the committed run of the same config: notebook 06 (not a stored figure).

A run is a function of its config on one machine. Elsewhere sums are rounded differently, a rounding can change which
token is sampled, and from there the runs differ: expect the same course at first and the same kind of course later.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from gmc_core.reporting.figure_style import estimator_style
from gmc_core.reporting.run_records import Runs
from gmc_core.training.run_directory import RunRecord


def committed_rows(tables: Runs, table: str, run_id: str, metric: str) -> np.ndarray:
    """`metric` of the committed run in the order of updates. Raises ValueError if the tables lack the run."""
    frame = getattr(tables, table)
    rows = frame[frame["run_id"] == run_id].sort_values("update", kind="stable")
    if rows.empty:
        raise ValueError(f"the tables of {tables.name} have no run {run_id}")
    return rows[metric].to_numpy(dtype=float)


def same_updates(live: RunRecord, tables: Runs, metric: str = "reward_mean") -> int:
    """Number of updates from the start in which the live run has the committed value of `metric` (as stored, fp32)."""
    here = np.array([row[metric] for row in live.metrics], dtype=np.float32)
    there = committed_rows(tables, "metrics", live.config.run_id, metric).astype(np.float32)
    different = np.flatnonzero(here != there)
    return int(different[0]) if len(different) else len(here)


def draw_live_run(live: RunRecord, tables: Runs) -> Figure:
    """(a) accuracy, live over committed; (b) mean reward of the rollouts that each update learns from."""
    fig, (left, right) = plt.subplots(1, 2, figsize=(11, 3.9))
    style, run_id, delay = estimator_style(live.config.estimator), live.config.run_id, live.config.delay
    updates = [row["update"] for row in live.evaluations]
    committed = committed_rows(tables, "evaluations", run_id, "accuracy")
    left.plot(updates, committed, **style.line(label="committed", linewidth=4, alpha=0.35, markersize=9))
    left.plot(updates, [row["accuracy"] for row in live.evaluations], color="#222222", marker=".", label="here and now")
    left.set(xlabel="update", ylabel="accuracy", ylim=(-0.03, 1.03))
    left.set_title(f"(a) {style.label}, delay {delay}, seed {live.config.seed}")
    left.legend(loc="lower right")

    update = np.array([row["update"] for row in live.metrics])
    right.plot(
        update, committed_rows(tables, "metrics", run_id, "reward_mean"),
        **style.line(label="committed", linewidth=4, alpha=0.35, marker=None),
    )  # fmt: skip
    right.plot(update, [row["reward_mean"] for row in live.metrics], color="#222222", linewidth=1, label="here and now")
    if delay < update[-1]:
        right.axvspan(0, delay, color="#F1F1F1", zorder=0, linewidth=0)
        right.annotate("sampled by the initial policy", (2, 0.94), fontsize=8.5, color="#444444")
    right.set(xlabel="update", ylabel="mean reward of its rollouts", ylim=(-0.03, 1.03))
    right.set_title(f"(b) What it learns from is {delay} updates old")
    return fig
