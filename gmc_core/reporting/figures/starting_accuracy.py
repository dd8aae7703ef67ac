"""Figure S5: warm starts that know less or more: does the order of the methods depend on them?"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from gmc_core.reporting.figures.needs import Needs
from gmc_core.reporting.figures.study_panels import draw_study, headline, seeds_note
from gmc_core.reporting.profiles import Profile
from gmc_core.reporting.run_records import Runs
from gmc_core.reporting.study_arrays import study_arrays

NEEDS = Needs(("starting_accuracy",))
CHANCE = 0.1  # of a model that knows the form of a response and nothing else


def compute(profile: Profile) -> dict[str, Any]:
    """Arrays (method, warm start, seed), the warm starts in the order of their accuracy."""
    return figure_data(NEEDS.load(profile)["starting_accuracy"])


def figure_data(tables: Runs) -> dict[str, Any]:
    """`study_arrays` with the warm starts as settings; `initial`, their mean accuracy before training."""
    start = tables.runs.groupby("model")["initial_accuracy"].transform("mean")
    runs = tables.runs.assign(
        method=tables.runs["estimator"],
        setting=[PurePosixPath(model).name for model in tables.runs["model"]],
        start=start,
    ).sort_values("start", kind="stable")
    data = study_arrays(tables, runs, np.random.default_rng(5))
    initial = runs.groupby("setting", sort=False)["start"].first()
    return data | {"delay": int(runs["delay"].iloc[0]), "initial": initial.to_numpy()}


def draw(data: dict[str, Any]) -> Figure:
    """Three panels from the values of `figure_data`."""
    fig, axes = plt.subplots(1, 3, figsize=(12, 4.8))
    words = {"tiny_qwen3": "that of main"}
    labels = [
        f"{words.get(str(name), name)}\n{accuracy:.2f}"
        for name, accuracy in zip(data["settings"], data["initial"], strict=True)
    ]
    draw_study(
        fig, list(axes), data | {"settings": np.array(labels)}, "warm start, accuracy before training", difference=True
    )
    for ax in axes[:2]:
        for place, accuracy in enumerate(data["initial"]):
            ax.hlines(accuracy, place - 0.25, place + 0.25, color="#444444", linewidth=1, linestyle=":")
        ax.axhline(CHANCE, color="#BBBBBB", linewidth=0.8)
    axes[0].annotate("chance 0.10", (1, CHANCE), xycoords=("axes fraction", "data"), xytext=(-2, -3), ha="right",
                     va="top", textcoords="offset points", fontsize=7.5, color="#777777")  # fmt: skip
    headline(fig, (
        f"Delay {int(data['delay'])}, step sizes tuned at the warm start of main", f"{int(data['updates'])} updates",
        seeds_note(data["final"].shape[-1]), "dotted: accuracy before training",
    ))  # fmt: skip
    return fig
