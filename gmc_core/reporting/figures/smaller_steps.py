"""Figure S14: where step sizes tuned elsewhere lost runs: are the methods that lose them bad or only too fast?

Every method at the step size that was tuned from the start of `main`, at half and at a quarter of it.
"""

from __future__ import annotations

import json
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
    styles_of,
)
from gmc_core.reporting.profiles import Profile
from gmc_core.reporting.run_records import Runs
from gmc_core.reporting.study_arrays import study_arrays

NEEDS = Needs(("smaller_steps",))
STEPS = {1: "tuned", 2: "half", 4: "quarter"}  # by what the tuned step size is divided by
STEP_LABELS = ("tuned\nstep size", "half\nof it", "quarter\nof it")
START_WORDS = {"weak": "Weak start", "strong": "Strong start", "digits_24": "Responses of 50 tokens"}


def compute(profile: Profile) -> dict[str, Any]:
    """Arrays (method, warm start and step size, seed), NaN where a start has fewer seeds than another."""
    return figure_data(NEEDS.load(profile)["smaller_steps"])


def figure_data(tables: Runs) -> dict[str, Any]:
    """`study_arrays` with "<warm start> <step>" as settings: by length, accuracy of the start, falling step size.

    `starts`: the warm starts; `steps`: "tuned", "half" and "quarter"; `initial`: mean accuracy before training.
    """
    runs = tables.runs.assign(
        method=tables.runs["estimator"],
        start=[PurePosixPath(model).name for model in tables.runs["model"]],
        initial=tables.runs.groupby("model")["initial_accuracy"].transform("mean"),
        digits=[json.loads(options).get("digits", 0) for options in tables.runs["task_options"]],
    )
    tuned = runs.groupby(["method", "start"])["learning_rate"].transform("max")
    runs["divisor"] = (tuned / runs["learning_rate"]).round().astype(int)
    runs["setting"] = [f"{start} {STEPS[k]}" for start, k in zip(runs["start"], runs["divisor"], strict=True)]
    runs = runs.sort_values(["digits", "initial", "divisor"], kind="stable")
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
    fig, axes = plt.subplots(2, len(starts), figsize=(13, 7.4), height_ratios=(2, 1), squeeze=False)
    panels = []
    for column, (start, initial) in enumerate(zip(starts, data["initial"], strict=True)):
        own = slice(column * len(steps), (column + 1) * len(steps))
        there = np.isfinite(data["area"][:, own]).any(axis=(0, 1))  # seeds
        panels.append((own, there, start, f"{START_WORDS[str(start)]}, n = {int(there.sum())} seeds", initial))
    letters = iter("abcdefgh")
    for ax, (own, there, _, words, initial) in zip(axes[0], panels, strict=True):
        over_settings(ax, styles, STEP_LABELS, data["area"][:, own][..., there], data["area_mean"][:, own])
        ax.axhline(initial, color="#444444", linewidth=1, linestyle=":")
        ax.set_title(f"({next(letters)}) {words}", fontsize=9.5)
    axes[0, 0].set_ylabel(AREA)
    for ax, (own, there, start, _, _) in zip(axes[1], panels, strict=True):
        collapsed, dips = (data[key][:, own][..., there] for key in ("collapsed", "dips"))
        rows = [style.label for style in styles] if ax is axes[1, 0] else [""] * len(styles)
        fallen_grid(ax, rows, steps, collapsed, dips)
        ax.set_title(f"({next(letters)}) {START_WORDS[str(start)]}: runs lost (d: dips)", pad=18, fontsize=9.5)
    method_legend(fig, axes[0, :1], ncols=len(styles))
    headline(fig, (
        f"Delay {int(data['delay'])}, step sizes tuned at the warm start of main, halved and quartered",
        f"{int(data['updates'])} updates",
    ), ("line: mean, five seeds with 95 % interval, two seeds shown", "dotted: accuracy before training"))  # fmt: skip
    return fig
