"""Figure S3: the threshold of the four capping rules, from the on-policy mass to no cap at all.

(c) shows the mean weight beside it: a smaller threshold is also a smaller step.
"""

from __future__ import annotations

import json
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from gmc_core.estimators import ESTIMATORS
from gmc_core.reporting.figures.needs import Needs
from gmc_core.reporting.figures.study_panels import draw_study, headline, over_settings, seeds_note, styles_of
from gmc_core.reporting.profiles import Profile
from gmc_core.reporting.run_records import Runs
from gmc_core.reporting.study_arrays import by_cell, interval_rows, over_updates, study_arrays

NEEDS = Needs(("threshold",))


def compute(profile: Profile) -> dict[str, Any]:
    """Arrays (method, epsilon, seed) of both measures and of the mean weight."""
    return figure_data(NEEDS.load(profile)["threshold"])


def figure_data(tables: Runs) -> dict[str, Any]:
    """`study_arrays` with the thresholds as settings; `weight` and `weight_mean`, mean over the updates of a run."""
    epsilon = [
        ESTIMATORS[run.estimator](**json.loads(run.estimator_options)).epsilon for run in tables.runs.itertuples()
    ]
    runs = tables.runs.assign(
        method=tables.runs["estimator"],
        setting=[f"{value:g}" for value in epsilon],
        epsilon=epsilon,
        weight=tables.runs["run_id"].map(over_updates(tables, "weight_mean")),
    ).sort_values("epsilon", kind="stable")
    generator = np.random.default_rng(3)
    data = study_arrays(tables, runs, generator)
    weight = by_cell(runs, "weight", data["names"], data["settings"])
    return data | {
        "delay": int(runs["delay"].iloc[0]),
        "weight": weight,
        "weight_mean": interval_rows(weight, generator),
    }


def draw(data: dict[str, Any]) -> Figure:
    """Three panels from the values of `figure_data`."""
    fig, axes = plt.subplots(1, 3, figsize=(12, 4.6))
    draw_study(fig, list(axes), data, r"threshold $\epsilon$")
    ax = axes[2]
    over_settings(
        ax, styles_of(data["names"]), data["settings"].tolist(), data["weight"], data["weight_mean"], ylim=None
    )
    ax.set_ylim(bottom=0)
    ax.set(xlabel=r"threshold $\epsilon$", ylabel="mean weight over the updates (1)")
    ax.set_title("(c) Mean weight")
    headline(fig, (
        rf"Delay {int(data['delay'])}, step sizes tuned at $\epsilon = 0.2$ and kept",
        f"{int(data['updates'])} updates",
        seeds_note(data["final"].shape[-1]),
    ))  # fmt: skip
    return fig
