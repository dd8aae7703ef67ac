"""Figure S12: the dead zone: how often runs enter it, whether they leave it again, and which updates come before.

A run is dead while the group mass of its stale rollouts is near 0 (mean log M at most log 0.1, three updates or more):
the policy has left its rollouts, and no rule that weighs by ratios pulls it back. Runs are those of figure 5, at every
step size they were run at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gmc_core.reporting.dead_zone import before_first_stretch, dead_stretches, dead_summary
from gmc_core.reporting.figures.needs import Needs
from gmc_core.reporting.figures.study_panels import bin_words, count_grid, headline, method_legend, styles_of
from gmc_core.reporting.profiles import Profile
from gmc_core.reporting.run_comparisons import in_order
from gmc_core.reporting.run_records import Runs

if TYPE_CHECKING:
    import pandas as pd

NEEDS = Needs(("main",), until_then=("first_staleness",), smoke=("smoke",))
EDGES = (0.0, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.07, np.inf)  # of the length of an update, parameter units
ENOUGH = 10  # updates of one method in a bin below which its own share is not shown
WITHIN = 3  # updates in which a dead stretch counts as following


def compute(profile: Profile) -> dict[str, Any]:
    """Counts by method and delay, what follows updates of each length, and each run's first entry."""
    (tables,) = NEEDS.load(profile).values()
    return figure_data(tables)


def figure_data(tables: Runs) -> dict[str, Any]:
    """runs, entered, ended, share as (method, delay), NaN where nothing was run.

    updates and followed as (method, bin of length): see `before_first_stretch`, positive delays. Of each run that has a
    stretch (those that are the same run until then count once): entry_name (place in names), entry_update, entry_length
    (longest update among the three before) and entry_ended, whether the run ended in the dead zone.
    """
    runs = tables.runs
    names, delays = in_order(runs["estimator"]), sorted(set(runs["delay"]))
    summary = dead_summary(tables.metrics, runs).set_index(["estimator", "delay"])
    index = [(name, delay) for name in names for delay in delays]
    data: dict[str, Any] = {"experiment": tables.name, "names": names, "delay": np.array(delays)}
    data["seeds"] = int(runs["seed"].nunique())
    for column in ("runs", "entered", "ended", "share"):
        data[column] = summary[column].reindex(index).to_numpy(dtype=float).reshape(len(names), len(delays))
    stale = runs[runs["delay"] > 0]
    early = before_first_stretch(tables.metrics, stale, within=WITHIN)
    for column, rows in (("updates", early), ("followed", early[early["followed"]])):
        data[column] = np.stack([
            np.histogram(rows.loc[rows["estimator"] == name, "update_length"], EDGES)[0] for name in names
        ])  # fmt: skip
    entries = _entries(tables, stale)
    return data | {
        "length_edges": np.array(EDGES),
        "entry_name": np.array([names.index(name) for name in entries["estimator"]], dtype=int),
        "entry_update": entries["start"].to_numpy(dtype=int),
        "entry_length": entries["longest_length"].to_numpy(dtype=float),
        "entry_ended": entries["ended"].to_numpy(dtype=bool),
    }


def _entries(tables: Runs, stale: pd.DataFrame) -> pd.DataFrame:
    """The first stretch of every run, one for runs that are the same until then; ended: any of these ended dead."""
    stretches = dead_stretches(tables.metrics.astype({"run_id": str}))
    ended = set(stretches.loc[~stretches["escaped"].astype(bool), "run_id"])
    first = stretches.drop_duplicates("run_id").merge(
        stale[["run_id", "estimator", "seed", "learning_rate"]], on="run_id"
    )
    first = first.assign(ended=first["run_id"].isin(ended))
    keys = ["estimator", "seed", "learning_rate", "start", "last_length", "longest_length"]
    return first.groupby(keys, sort=False, dropna=False)["ended"].any().reset_index()


def draw(data: dict[str, Any]) -> Figure:
    """Three panels from the values of `figure_data`."""
    styles = styles_of(data["names"])
    delays = data["delay"]
    fig = plt.figure(figsize=(12.5, 4.2 + max(3.6, 0.3 * len(styles) + 1.2)))
    upper, lower = fig.subfigures(2, 1, height_ratios=(max(3.6, 0.3 * len(styles) + 1.2), 4.2))
    left, right = upper.subplots(1, 2, sharey=True)
    columns = [f"delay {delay}" for delay in delays]
    texts = np.empty(data["runs"].shape, dtype=object)
    shares = np.empty(data["runs"].shape, dtype=object)
    for place in np.ndindex(texts.shape):
        n, entered, ended = (data[key][place] for key in ("runs", "entered", "ended"))
        texts[place] = f"{entered:.0f} ({ended:.0f}) of {n:.0f}" if np.isfinite(n) else ""
        shares[place] = f"{100 * data['share'][place]:.0f} %" if np.isfinite(n) else ""
    labels = [style.label for style in styles]
    count_grid(left, labels, columns, data["entered"] / data["runs"], texts)
    left.set_title("(a) Runs that entered the dead zone (and ended in it)")
    count_grid(right, labels, columns, data["share"], shares)
    right.set_title("(b) Share of updates spent in it")
    left, right = lower.subplots(1, 2)
    _draw_lengths(left, data, styles)
    left.set_title("(c) What follows an update before the first entry")
    _draw_entries(right, data, styles)
    right.set_title("(d) First entry of each run (ringed: ended in it)")
    method_legend(lower, [left], ncols=min(len(styles), 9))
    step = {"main": "own tuned step size and the next larger one"}.get(
        str(data["experiment"]), "one common step size, not tuned per method"
    )
    headline(
        fig, (f"Experiment {data['experiment']}: {step}", f"{int(data['seeds'])} seeds", "(c), (d): delays above 0")
    )
    return fig


def _draw_lengths(ax: Axes, data: dict[str, Any], styles: list) -> None:
    """Share of updates of each length that a dead stretch follows; bars: all methods; marks: those with `ENOUGH`."""
    words = bin_words(data["length_edges"])
    updates, followed = data["updates"], data["followed"]
    total = updates.sum(0)
    share = 100 * followed.sum(0) / np.maximum(total, 1)
    ax.bar(range(len(words)), share, 0.85, color="#D9D9D9", zorder=1)
    for k, style in enumerate(styles):
        there = updates[k] >= ENOUGH
        own = 100 * followed[k] / np.maximum(updates[k], 1)
        x = np.arange(len(words)) + 0.8 * ((k + 0.5) / len(styles) - 0.5)
        ax.plot(x[there], own[there], **style.points(markersize=4.5))
    for place, n in enumerate(total):
        ax.annotate(f"{n}", (place, 1), xycoords=("data", "axes fraction"), xytext=(0, -2), textcoords="offset points",
                    ha="center", va="top", fontsize=7.5, color="#444444")  # fmt: skip
    ax.set_xticks(range(len(words)), words, rotation=35, ha="right", rotation_mode="anchor")
    ax.margins(y=0.2)
    ax.set_ylim(bottom=0)
    ax.grid(visible=False, axis="x")
    ax.set(xlabel="length of the update (parameter units); numbers: updates",
           ylabel=f"% followed by a dead\nstretch within {WITHIN} updates")  # fmt: skip


def _draw_entries(ax: Axes, data: dict[str, Any], styles: list) -> None:
    """The update at which each run first enters against the longest update among the three before."""
    for k, style in enumerate(styles):
        own = data["entry_name"] == k
        ax.plot(data["entry_update"][own], data["entry_length"][own], **style.points(label=None, markersize=5))
    last = data["entry_ended"]
    ring = {"marker": "o", "markersize": 9, "linestyle": "none", "color": "#444444", "markerfacecolor": "none"}
    ax.plot(data["entry_update"][last], data["entry_length"][last], markeredgewidth=0.8, **ring)
    ax.set(xlabel="update", ylabel="longest of the three updates\nbefore it (parameter units)")
    ax.set_ylim(0, 1.1 * max(data["entry_length"], default=1.0))
