"""Figure S14: from the weak and the strong start: are the methods that lose runs there bad or only too fast?

Every method at the step size that was tuned from the start of `main`, at half and at a quarter of it.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from gmc_core.reporting.figures.needs import Needs
from gmc_core.reporting.figures.study_panels import (
    AREA,
    fallen_grid,
    headline,
    method_legend,
    over_settings,
    seeds_note,
    styles_of,
)
from gmc_core.reporting.profiles import Profile
from gmc_core.reporting.run_records import Runs
from gmc_core.reporting.study_arrays import study_arrays

NEEDS = Needs(("smaller_steps",))
STEPS = {1: "tuned", 2: "half", 4: "quarter"}  # by what the tuned step size is divided by


def compute(profile: Profile) -> dict[str, Any]:
    """Arrays (method, warm start and step size, seed)."""
    return figure_data(NEEDS.load(profile)["smaller_steps"])


def figure_data(tables: Runs) -> dict[str, Any]:
    """`study_arrays` with "<warm start> <step>" as settings, by rising accuracy of the start, then by falling step.

    `starts`: the warm starts; `steps`: "tuned", "half" and "quarter"; `initial`: mean accuracy before training.
    """
    runs = tables.runs.assign(
        method=tables.runs["estimator"],
        start=[PurePosixPath(model).name for model in tables.runs["model"]],
        initial=tables.runs.groupby("model")["initial_accuracy"].transform("mean"),
    )
    tuned = runs.groupby(["method", "start"])["learning_rate"].transform("max")
    runs["divisor"] = (tuned / runs["learning_rate"]).round().astype(int)
    runs["setting"] = [f"{start} {STEPS[k]}" for start, k in zip(runs["start"], runs["divisor"], strict=True)]
    runs = runs.sort_values(["initial", "divisor"], kind="stable")
    initial = runs.groupby("start", sort=False)["initial"].first()
    return study_arrays(tables, runs, np.random.default_rng(14)) | {
        "delay": int(runs["delay"].iloc[0]),
        "starts": list(initial.index),
        "steps": list(STEPS.values()),
        "initial": initial.to_numpy(),
    }


def draw(data: dict[str, Any]) -> Figure:
    """A column per warm start: the area under the curve over the step sizes, and the runs that were lost."""
    styles, starts, steps = styles_of(data["names"]), list(data["starts"]), [str(step) for step in data["steps"]]
    labels = [f"{step}\nstep size" if step == "tuned" else f"{step}\nof it" for step in steps]
    fig, axes = plt.subplots(2, len(starts), figsize=(11, 7.4), height_ratios=(2, 1), squeeze=False)
    letters = iter("abcd")
    for column, start in enumerate(starts):
        own = slice(column * len(steps), (column + 1) * len(steps))
        ax = axes[0, column]
        over_settings(ax, styles, labels, data["area"][:, own], data["area_mean"][:, own])
        ax.axhline(data["initial"][column], color="#444444", linewidth=1, linestyle=":")
        ax.set_title(f"({next(letters)}) Start: {start}, {data['initial'][column]:.2f} before training (dotted)")
        ax.set_ylabel(AREA)
    for column, start in enumerate(starts):
        own = slice(column * len(steps), (column + 1) * len(steps))
        ax = axes[1, column]
        fallen_grid(ax, [style.label for style in styles], steps, data["collapsed"][:, own], data["dips"][:, own])
        ax.set_title(f"({next(letters)}) Start: {start}, runs lost (d: a dip, recovered)", pad=18)
    method_legend(fig, axes[0, :1], ncols=len(styles))
    headline(fig, (
        f"Delay {int(data['delay'])}, step sizes tuned from another start, halved and quartered",
        f"{int(data['updates'])} updates", seeds_note(data["final"].shape[-1]),
    ))  # fmt: skip
    return fig
