"""Figure S1: the five methods under other learners: gradient clipping, a bound on the length of an update, AdamW.

(c) and (d) ask what a fall follows: runs that had collapsed at their end, and how often an update of a given length is
followed by a dead stretch (see `dead_zone`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gmc_core.reporting.dead_zone import before_first_stretch
from gmc_core.reporting.figures.needs import Needs
from gmc_core.reporting.figures.study_panels import (
    ACCURACY,
    AREA,
    bin_words,
    by_category,
    fallen_grid,
    headline,
    method_legend,
    seeds_note,
    styles_of,
)
from gmc_core.reporting.profiles import Profile
from gmc_core.reporting.run_records import Runs
from gmc_core.reporting.study_arrays import study_arrays

if TYPE_CHECKING:
    import pandas as pd

NEEDS = Needs(("optimizer",))
EDGES = (0.0, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, np.inf)  # of the length of an update, in parameter units
OPTIMIZERS = {"sgd": "SGD", "adamw": "AdamW"}
WITHIN = 3  # updates in which a dead stretch counts as following


def compute(profile: Profile) -> dict[str, Any]:
    """Arrays (method, learner, seed), and what follows updates of each length, pooled over methods, by optimiser."""
    return figure_data(NEEDS.load(profile)["optimizer"])


def figure_data(tables: Runs) -> dict[str, Any]:
    """`study_arrays` with the learners as settings; length_updates, by (optimiser, bin of length), the updates before a
    first dead stretch, and length_followed, how many of them it followed.
    """
    runs = tables.runs.assign(method=tables.runs["estimator"], setting=learners(tables.runs))
    data = study_arrays(tables, runs, np.random.default_rng(1)) | {"delay": int(runs["delay"].iloc[0])}
    counts = []
    for kind in OPTIMIZERS:
        early = before_first_stretch(tables.metrics, runs[runs["optimizer"] == kind], within=WITHIN)
        counts.append([np.histogram(own["update_length"], EDGES)[0] for own in (early, early[early["followed"]])])
    return data | {
        "length_edges": np.array(EDGES),
        "length_updates": np.array([updates for updates, _ in counts]),
        "length_followed": np.array([followed for _, followed in counts]),
    }


def learners(runs: pd.DataFrame) -> list[str]:
    """What each run learnt with, in words: optimiser, clip or bound, and its step size beside the tuned one of SGD."""
    reference = runs[(runs["optimizer"] == "sgd") & runs["gradient_clip"].notna()]
    tuned = reference.groupby("estimator")["learning_rate"].first()
    words = []
    for run in runs.itertuples():
        name = "SGD" if run.optimizer == "sgd" else f"AdamW {run.learning_rate:.0e}".replace("e-0", "e-")
        if np.isfinite(run.gradient_clip):
            name += f", clip {run.gradient_clip:g}"
        elif not np.isfinite(run.max_update_length):
            name += ", no clip" if run.optimizer == "sgd" else ""
        if np.isfinite(run.max_update_length):
            name += f", length ≤ {run.max_update_length:g}"
        factor = round(run.learning_rate / tuned[run.estimator]) if run.optimizer == "sgd" else 1
        words.append(name + (f", step × {factor}" if factor > 1 else ""))
    return words


def draw(data: dict[str, Any]) -> Figure:
    """Four panels from the values of `figure_data`."""
    styles, settings = styles_of(data["names"]), [str(setting) for setting in data["settings"]]
    fig = plt.figure(figsize=(11.5, 11.6))
    upper, lower = fig.subfigures(2, 1, height_ratios=(1.6, 1))
    axes = upper.subplots(1, 2, sharey=True)
    for ax, key, title, label in (
        (axes[0], "final", "(a) Final accuracy", ACCURACY),
        (axes[1], "area", "(b) Area under the curve", AREA),
    ):
        by_category(ax, styles, settings, data[key], data[f"{key}_mean"])
        ax.set_title(title)
        ax.set_xlabel(label)
    method_legend(upper, axes[:1], ncols=5)
    left, right = lower.subplots(1, 2, width_ratios=(1.25, 1))
    columns = [
        style.label.replace(", ", ",\n").replace(" (", "\n(").replace("-normalised IS", "-\nnormalised")
        for style in styles
    ]
    fallen_grid(left, settings, columns, data["collapsed"].swapaxes(0, 1), data["dips"].swapaxes(0, 1))
    left.set_title("(c) Collapsed runs of all (d: dips)")
    draw_after_length(right, data)
    right.set_title("(d) What follows a long update")
    headline(fig, (
        f"Delay {int(data['delay'])}, step sizes tuned per method for SGD with the clip (AdamW: as named, untuned)",
        f"{int(data['updates'])} updates", seeds_note(data["final"].shape[-1], "large marker"),
    ))  # fmt: skip
    return fig


def draw_after_length(ax: Axes, data: dict[str, Any]) -> None:
    """Share of updates of each length that a dead stretch follows within `WITHIN` updates; numbers: all of the bin."""
    words = bin_words(data["length_edges"])
    width = 0.8 / len(OPTIMIZERS)
    for k, (label, color) in enumerate(zip(OPTIMIZERS.values(), ("#444444", "#9ECAE1"), strict=True)):
        updates, followed = data["length_updates"][k], data["length_followed"][k]
        share = 100 * followed / np.maximum(updates, 1)
        x = np.arange(len(words)) + width * (k - (len(OPTIMIZERS) - 1) / 2)
        ax.bar(x, np.where(updates > 0, share, 0), width, color=color, label=label)
        for place, n, value in zip(x, updates, share, strict=True):
            if n:
                ax.annotate(f"{n}", (place, value), xytext=(0, 2), textcoords="offset points", ha="center", fontsize=7,
                            rotation=90)  # fmt: skip
    ax.set_xticks(range(len(words)), words, rotation=45, ha="right", rotation_mode="anchor")
    ax.margins(y=0.18)
    ax.grid(visible=False, axis="x")
    ax.set(
        xlabel="length of the update (parameter units)", ylabel=f"% followed by a dead stretch\nwithin {WITHIN} updates"
    )
    ax.legend(loc="upper left")
