"""Figure S2: what a larger group buys each method at a fixed number of prompts.

(d) shows why it should: along GMC's own runs, the excess masses that bound the bias of GMC, of truncating and of
masking. A larger group is also more data; step sizes were tuned at 16 rollouts.
"""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from gmc_core.reporting.direct_labels import label_ends
from gmc_core.reporting.figure_style import estimator_style
from gmc_core.reporting.figures.needs import Needs
from gmc_core.reporting.figures.study_panels import (
    draw_study,
    headline,
    over_settings,
    seeds_note,
)
from gmc_core.reporting.profiles import Profile
from gmc_core.reporting.run_records import Runs
from gmc_core.reporting.study_arrays import by_cell, interval_rows, over_updates, study_arrays

NEEDS = Needs(("group_size",))
EXCESS = {"gmc": "excess_group", "tic_truncate": "excess_truncate", "tic_mask": "excess_mask"}  # rule -> its bias bound


def compute(profile: Profile) -> dict[str, Any]:
    """Arrays (method, group size, seed), and the excesses along the runs of GMC as (rule, group size, seed)."""
    return figure_data(NEEDS.load(profile)["group_size"])


def figure_data(tables: Runs) -> dict[str, Any]:
    """`study_arrays` with the group sizes as settings; `excess` and `excess_mean`, mean over the updates of a run."""
    runs = tables.runs.assign(method=tables.runs["estimator"], setting=tables.runs["group_size"])
    runs = runs.sort_values("setting", kind="stable")
    generator = np.random.default_rng(2)
    data = study_arrays(tables, runs, generator)
    own, sizes = runs[runs["method"] == "gmc"], sorted(set(runs["setting"]))
    excess = np.concatenate([
        by_cell(own.assign(excess=own["run_id"].map(over_updates(tables, column))), "excess", ["gmc"], sizes)
        for column in EXCESS.values()
    ])  # fmt: skip
    return data | {
        "delay": int(runs["delay"].iloc[0]),
        "excess_rules": list(EXCESS),
        "excess": excess,
        "excess_mean": interval_rows(excess, generator),
    }


def draw(data: dict[str, Any]) -> Figure:
    """Four panels from the values of `figure_data`."""
    fig, axes = plt.subplots(2, 2, figsize=(11, 8.2))
    draw_study(fig, list(axes.flat), data, "rollouts per prompt, G", difference=True)
    ax = axes[1, 1]
    words = {"gmc": "GMC", "tic_truncate": "truncating", "tic_mask": "masking"}
    styles = [estimator_style(rule, label=words[rule]) for rule in map(str, data["excess_rules"])]
    place = over_settings(ax, styles, data["settings"].tolist(), data["excess"], data["excess_mean"], ylim=None)
    ax.set_ylim(bottom=0)
    ax.set(xlabel="rollouts per prompt, G", ylabel="mean excess over the updates (1)")
    ax.set_title("(d) Bounds on the bias, along GMC's runs")
    label_ends(ax, place[-1] + 0.1, data["excess_mean"][:, -1, 0], [s.label for s in styles], [s.color for s in styles])
    headline(fig, (
        f"Delay {int(data['delay'])}, 8 prompts an update at every G, step sizes tuned at G = 16",
        f"{int(data['updates'])} updates", seeds_note(data["final"].shape[-1]),
    ))  # fmt: skip
    return fig
