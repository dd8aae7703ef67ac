"""Figure S9: the mean of a weight apart from its shape: rules rescaled group by group to the mean of another.

The rescaled rules are ours, made to take the two apart. All stand at the step size that was tuned for GMC: with equal
means, equal step sizes are fair; (c) and (f) show whether the means are equal.
"""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from gmc_core.reporting.figure_style import LineStyle, estimator_style
from gmc_core.reporting.figures.needs import Needs
from gmc_core.reporting.figures.study_panels import (
    ACCURACY,
    AREA,
    by_row,
    difference_note,
    headline,
    seeds_note,
)
from gmc_core.reporting.profiles import Profile
from gmc_core.reporting.run_records import Runs
from gmc_core.reporting.step_sizes import chosen_at_edge
from gmc_core.reporting.study_arrays import REFERENCE, by_cell, interval_rows, over_updates, study_arrays

NEEDS = Needs(("main_tuning", "mean_and_shape"))


def compute(profile: Profile) -> dict[str, Any]:
    """Arrays (variant, delay, seed) of both measures and of the mean weight."""
    tables = NEEDS.load(profile)
    return figure_data(tables["main_tuning"], tables["mean_and_shape"])


def figure_data(tuning: Runs, tables: Runs) -> dict[str, Any]:
    """`study_arrays` with variants as methods ("shape" or "shape at the mean of rule") and delays as settings; `edge`,
    whether the step size of a delay, tuned for GMC, lies at an end of its grid.
    """
    variants = [
        f"{run.estimator} at the mean of {run.rescale_to}" if isinstance(run.rescale_to, str) else run.estimator
        for run in tables.runs.itertuples()
    ]
    runs = tables.runs.assign(
        method=variants,
        setting=tables.runs["delay"],
        weight=tables.runs["run_id"].map(over_updates(tables, "weight_mean")),
    )
    generator = np.random.default_rng(9)
    data = study_arrays(tables, runs, generator)
    delays = sorted(set(runs["delay"]))
    weight = by_cell(runs, "weight", data["names"], delays)
    edge = chosen_at_edge(tuning.runs, [REFERENCE], delays)[0]
    return data | {"edge": edge, "weight": weight, "weight_mean": interval_rows(weight, generator)}


def variant_style(variant: str) -> LineStyle:
    """The style of the rule that gives the shape, labelled with the rule that gives the mean."""
    shape, _, mean = variant.partition(" at the mean of ")
    if not mean:
        return estimator_style(shape)
    return estimator_style(shape, label=f"{estimator_style(shape).label},\nmean of {estimator_style(mean).label}")


def draw(data: dict[str, Any]) -> Figure:
    """A row of three panels per delay."""
    delays = [str(delay) for delay in data["settings"]]
    fig, axes = plt.subplots(len(delays), 3, figsize=(12.5, 4.2 * len(delays)), sharey=True, squeeze=False)
    styles = [variant_style(str(name)) for name in data["names"]]
    reference = [str(name) for name in data["names"]].index(REFERENCE)
    panels = (("final", "Final accuracy", ACCURACY), ("area", "Area under the curve", AREA),
              ("weight", "Mean weight", "mean weight over the updates (1)"))  # fmt: skip
    for place, ax in np.ndenumerate(axes):
        k, (key, title, label) = place[0], panels[place[1]]
        notes = [] if key == "weight" else [
            "" if row == reference else difference_note(data[f"{key}_difference_mean"][row, k])
            for row in range(len(styles))
        ]  # fmt: skip
        by_row(ax, styles, data[key][:, k], data[f"{key}_mean"][:, k], reference=reference, notes=notes)
        ax.set_title(f"({'abcdefghi'[3 * k + place[1]]}) {title}, delay {delays[k]}")
        ax.set_xlabel(label)
    headline(
        fig,
        (
            "Step sizes tuned for GMC: "
            + ", ".join(
                f"{rate:g}{'*' * bool(edge)}"
                for rate, edge in zip(data["learning_rate"][reference], data["edge"], strict=True)
            )
            + " (*: at an end of the grid)" * bool(data["edge"].any()),
            f"{int(data['updates'])} updates",
            seeds_note(data["final"].shape[-1]),
            "dotted: GMC; right of a row: difference to it, same seed",
        ),
    )
    return fig
