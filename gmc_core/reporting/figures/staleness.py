"""Figure 5: final accuracy and area under the curve against delay, for every method of the experiment.

Once the tuned comparison (`main`) is complete, each method stands at its own tuned step size, on fresh seeds, beside
the picture at one common step size. Until then all methods stand at the one step size of `first_staleness`, which was
not tuned for any of them: a first picture, not a verdict. Differences to GMC are those in the same seeds.
"""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gmc_core.reporting.direct_labels import label_ends
from gmc_core.reporting.figures import tuned_staleness
from gmc_core.reporting.figures.needs import Needs
from gmc_core.reporting.figures.study_panels import (
    ACCURACY,
    AREA,
    difference_rows,
    headline,
    over_settings,
    seeds_note,
    styles_of,
)
from gmc_core.reporting.profiles import Profile
from gmc_core.reporting.run_comparisons import by_seed, falls_table, in_order
from gmc_core.reporting.run_records import Runs
from gmc_core.reporting.study_arrays import MEASURES, REFERENCE, difference_to, interval_rows

NEEDS = Needs(("main_tuning", "main"), until_then=("first_staleness",), smoke=("smoke",))
BOOTSTRAP_SEED = 5


def compute(profile: Profile) -> dict[str, Any]:
    """The tuned comparison if its tables are complete, else the picture at one common step size."""
    tables = NEEDS.load(profile)
    if "main" in tables:
        return tuned_staleness.figure_data(tables["main_tuning"], tables["main"])
    (common,) = tables.values()
    return figure_data(common)


def draw(data: dict[str, Any]) -> Figure:
    """Whichever of the two pictures the data are of."""
    return tuned_staleness.draw(data) if "step_size" in data else draw_common(data)


def figure_data(tables: Runs) -> dict[str, Any]:
    """Arrays (estimator, delay, seed) of both measures, of their differences to GMC and of `collapsed`; with `_mean`,
    mean, low and high (last axis) over the seeds. Low and high are NaN for fewer than five seeds.
    """
    runs = tables.runs.drop(columns="collapsed").merge(falls_table(tables), on="run_id")
    names, delays, rates = in_order(runs["estimator"]), sorted(set(runs["delay"])), set(runs["learning_rate"])
    if len(rates) != 1:
        raise ValueError(f"figure 5 shows one common step size; the tables of {tables.name} hold {sorted(rates)}")
    generator = np.random.default_rng(BOOTSTRAP_SEED)
    data: dict[str, Any] = {
        "experiment": tables.name,
        "names": names,
        "delay": np.array(delays),
        "learning_rate": rates.pop(),
        "updates": int(runs["updates"].max()),
        "collapsed": by_seed(runs, "collapsed", names, delays),
    }
    for key, column in MEASURES.items():
        data[key] = by_seed(runs, column, names, delays)
        data[f"{key}_difference"] = difference_to(data[key], names)
        for name in (key, f"{key}_difference"):
            data[f"{name}_mean"] = interval_rows(data[name], generator)
    return data


def draw_common(data: dict[str, Any]) -> Figure:
    """Four panels from the values of `figure_data`; the lower two need at least one delay above 0."""
    delayed = [k for k, delay in enumerate(data["delay"]) if delay > 0][-2:]
    fig = plt.figure(figsize=(12.5, 9.4))
    rows = fig.subfigures(2, 1, height_ratios=(1.1, 1))  # laid out apart: their labels differ in width
    left, right = rows[0].subplots(1, 2)
    for ax, key, title, label in (
        (left, "final", "(a) Final accuracy", ACCURACY),
        (right, "area", "(b) Area under the curve", AREA),
    ):
        _draw_delays(ax, data, key)
        ax.set_title(title)
        ax.set_ylabel(label)
    lower = rows[1].subplots(1, max(len(delayed), 1), sharey=True, squeeze=False)[0]
    for ax, k, letter in zip(lower, delayed, "cd", strict=False):
        others = [j for j, name in enumerate(data["names"]) if str(name) != REFERENCE]
        difference_rows(
            ax,
            styles_of(np.asarray(data["names"])[others]),
            {key: data[f"{key}_difference"][others, k] for key in MEASURES},
            {key: data[f"{key}_difference_mean"][others, k] for key in MEASURES},
        )
        ax.set_title(f"({letter}) Difference to GMC at delay {data['delay'][k]}, same seed")
    if delayed:
        rows[1].legend(*lower[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    headline(fig, (
        f"Common step size {float(data['learning_rate']):g}, not tuned per method: not a verdict",
        f"{int(data['updates'])} updates", seeds_note(data["final"].shape[-1]),
    ))  # fmt: skip
    return fig


def _draw_delays(ax: Axes, data: dict[str, Any], key: str) -> None:
    styles = styles_of(data["names"])
    means = data[f"{key}_mean"]
    place = over_settings(ax, styles, [str(delay) for delay in data["delay"]], data[key], means)
    ax.set_xlabel("delay (updates)")
    label_ends(ax, place[-1] + 0.18, means[:, -1, 0], [s.label for s in styles], [s.color for s in styles])
