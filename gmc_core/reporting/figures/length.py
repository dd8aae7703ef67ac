"""Figure S4: responses of three lengths: trajectory ratios are products over tokens, token ratios are not.

At each length a method has its step size tuned at six digits and half of it; the better of the two, by mean area under
the curve on these same seeds, is what (a) and (b) show. (c) shows the other side of that choice, (d) the spread of the
trajectory ratios.
"""

from __future__ import annotations

import json
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from gmc_core.reporting.figures.needs import Needs
from gmc_core.reporting.figures.study_panels import (
    draw_study,
    headline,
    over_settings,
    seeds_note,
    styles_of,
)
from gmc_core.reporting.profiles import Profile
from gmc_core.reporting.run_records import Runs
from gmc_core.reporting.study_arrays import by_cell, interval_rows, keep_better, over_updates, study_arrays
from gmc_core.rollouts.tasks import make_task

NEEDS = Needs(("length",))


def compute(profile: Profile) -> dict[str, Any]:
    """Arrays (method, length, seed) at the better of two step sizes, and what the halved one changes."""
    return figure_data(NEEDS.load(profile)["length"])


def figure_data(tables: Runs) -> dict[str, Any]:
    """`study_arrays` of the better step size, with `halved` (whether it is the smaller one) as (method, length).

    change: area at half the step size minus area at the whole one; spread: median over the updates of the standard
    deviation of the trajectories' log-ratios, at the better step size; both (method, length, seed), with `_mean`.
    """
    tokens = [
        make_task(run.task, **json.loads(run.task_options)).max_response_tokens for run in tables.runs.itertuples()
    ]
    runs = tables.runs.assign(
        method=tables.runs["estimator"],
        setting=tokens,
        spread=tables.runs["run_id"].map(over_updates(tables, "log_ratio_std", "median")),
    ).sort_values("setting", kind="stable")
    largest = runs.groupby(["method", "setting"])["learning_rate"].transform("max")
    runs["variant"] = np.where(runs["learning_rate"] < largest, "half", "whole")
    generator = np.random.default_rng(4)
    better = keep_better(runs)
    data = study_arrays(tables, better, generator)
    names, lengths = data["names"], sorted(set(runs["setting"]))
    areas = {kind: by_cell(own, "area_under_curve", names, lengths) for kind, own in runs.groupby("variant")}
    change, spread = areas["half"] - areas["whole"], by_cell(better, "spread", names, lengths)
    half = by_cell(better.assign(half=better["variant"] == "half"), "half", names, lengths)
    return data | {
        "delay": int(runs["delay"].iloc[0]),
        "halved": np.nanmax(half, -1) > 0,
        "change": change,
        "change_mean": interval_rows(change, generator),
        "spread": spread,
        "spread_mean": interval_rows(spread, generator),
    }


def draw(data: dict[str, Any]) -> Figure:
    """Four panels from the values of `figure_data`."""
    fig, axes = plt.subplots(2, 2, figsize=(11, 8.2))
    label = "tokens of a well-formed response"
    draw_study(fig, list(axes[0]), data, label, hollow=data["halved"])
    styles, lengths = styles_of(data["names"]), data["settings"].tolist()
    over_settings(axes[1, 0], styles, lengths, data["change"], data["change_mean"], ylim=None)
    axes[1, 0].axhline(0, color="#444444", linewidth=1)
    axes[1, 0].set(xlabel=label, ylabel="area: half step - whole step")
    axes[1, 0].set_title("(c) What halving the step size changes")
    over_settings(axes[1, 1], styles, lengths, data["spread"], data["spread_mean"], ylim=None)
    axes[1, 1].set_ylim(bottom=0)
    axes[1, 1].set(xlabel=label, ylabel="standard deviation of log ratios (nats)")
    axes[1, 1].set_title("(d) Spread of the trajectory ratios, median update")
    headline(fig, (
        f"Delay {int(data['delay'])}, the better of two step sizes on these seeds (open marker: the halved one)",
        f"{int(data['updates'])} updates", seeds_note(data["final"].shape[-1]),
    ))  # fmt: skip
    return fig
