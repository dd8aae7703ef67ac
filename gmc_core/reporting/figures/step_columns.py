"""What figures S14 and S15 share: methods at their tuned step size and at parts of it, a column per setting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from gmc_core.reporting.figures.study_panels import (
    AREA,
    fallen_grid,
    headline,
    method_legend,
    over_settings,
    styles_of,
)
from gmc_core.reporting.run_records import Runs
from gmc_core.reporting.study_arrays import study_arrays

if TYPE_CHECKING:
    import pandas as pd

PARTS = {1: "tuned", 2: "half", 4: "quarter"}  # by what the tuned step size is divided by
LABELS = {"tuned": "tuned\nstep size", "half": "half\nof it", "quarter": "quarter\nof it"}


def step_arrays(tables: Runs, runs: pd.DataFrame, seed: int) -> dict[str, Any]:
    """`study_arrays` of runs labelled with `column`, in the order of their columns, then by falling step size.

    Settings are "<column> <part>"; `columns` and `parts` ("tuned", "half", "quarter") list them; `initial` is the mean
    accuracy before training of a column. The largest step size of a method in a column is the tuned one.
    """
    runs = runs.assign(method=runs["estimator"])
    tuned = runs.groupby(["method", "column"])["learning_rate"].transform("max")
    divisor = (tuned / runs["learning_rate"]).round().astype(int)
    columns = list(dict.fromkeys(runs["column"]))
    runs = runs.assign(
        divisor=divisor,
        place=runs["column"].map(columns.index),
        setting=[f"{column} {PARTS[k]}" for column, k in zip(runs["column"], divisor, strict=True)],
    ).sort_values(["place", "divisor"], kind="stable")
    return study_arrays(tables, runs, np.random.default_rng(seed)) | {
        "columns": columns,
        "parts": [PARTS[k] for k in sorted(set(divisor))],
        "initial": runs.groupby("place")["initial_accuracy"].mean().to_numpy(),
    }


def draw_steps(data: dict[str, Any], words: dict[str, str], first_line: tuple[str, ...]) -> Figure:
    """A column per setting, named by `words`: the area under the curve over the step sizes, and the runs lost."""
    styles, columns, parts = styles_of(data["names"]), list(data["columns"]), [str(part) for part in data["parts"]]
    fig, axes = plt.subplots(
        2, len(columns), figsize=(4.4 * len(columns) + 0.2, 6.2 + 0.24 * len(styles)), squeeze=False,
        height_ratios=(4.4, 0.2 + 0.4 * len(styles)),
    )  # fmt: skip
    panels, counts = [], set()
    for column, (name, initial) in enumerate(zip(columns, data["initial"], strict=True)):
        own = slice(column * len(parts), (column + 1) * len(parts))
        there = np.isfinite(data["area"][:, own]).any(axis=(0, 1))  # seeds
        counts.add(int(there.sum()))
        panels.append((own, there, words[str(name)], initial))
    letters = iter("abcdefgh")
    for ax, (own, there, word, initial) in zip(axes[0], panels, strict=True):
        labels = [LABELS[part] for part in parts]
        step = 0.045 if len(styles) < 8 else 0.035
        over_settings(ax, styles, labels, data["area"][:, own][..., there], data["area_mean"][:, own], step=step)
        ax.axhline(initial, color="#444444", linewidth=1, linestyle=":")
        ax.set_title(f"({next(letters)}) {word}, n = {int(there.sum())} seeds", fontsize=9.5)
    axes[0, 0].set_ylabel(AREA)
    for ax, (own, there, word, _) in zip(axes[1], panels, strict=True):
        collapsed, dips = (data[key][:, own][..., there] for key in ("collapsed", "dips"))
        rows = [style.label for style in styles] if ax is axes[1, 0] else [""] * len(styles)
        fallen_grid(ax, rows, parts, collapsed, dips)
        ax.set_title(f"({next(letters)}) {word}: runs lost (d: dips)", pad=18, fontsize=9.5)
    method_legend(fig, axes[0, :1], ncols=5)
    few = ", two seeds shown" if 2 in counts else ""
    headline(fig, first_line, (f"line: mean, five seeds with 95 % interval{few}", "dotted: accuracy before training"))
    return fig
