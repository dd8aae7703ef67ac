"""Figure 6: what happens along the runs at the largest delay, one line per seed and their mean.

Accuracy, then five of the logged metrics: gradient norm, group mass, effective sample size, capped groups and mean
weight. They are taken from the raw ratios, so all but the weight mean the same for every method. Runs are those of
figure 5: each method at its own tuned step size once `main` is complete, until then one common step size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gmc_core.reporting.figure_style import HEADLINE, estimator_style
from gmc_core.reporting.figures.needs import Needs
from gmc_core.reporting.figures.study_panels import headline
from gmc_core.reporting.profiles import Profile
from gmc_core.reporting.run_comparisons import curves, in_order
from gmc_core.reporting.run_records import Runs
from gmc_core.reporting.step_sizes import chosen_at_edge, split_by_choice

if TYPE_CHECKING:
    import pandas as pd

NEEDS = Needs(("main_tuning", "main"), until_then=("first_staleness",), smoke=("smoke",))
PANELS = {  # metric -> (title, y label)
    "accuracy": ("Accuracy", "accuracy"),
    "grad_norm": ("Gradient norm before clipping", "gradient norm (axis cut at 0.001)"),
    "log_mass_mean": ("Group mass", r"mean of $\log M$ (nats, linear within 1)"),
    "ess_fraction": ("Effective sample size", "ESS / G"),
    "capped_fraction": (r"Groups with $M > 1 + \epsilon$", "fraction of groups"),
    "weight_mean": ("Mean weight", "mean of $w$ (axis cut at 0.001)"),
}
LOG_FLOOR = {"grad_norm": 1e-3, "weight_mean": 1e-3}  # on a logarithmic axis, cut here: a fallen run reaches 0
WINDOW = 5  # updates of the running mean of logged metrics


def compute(profile: Profile) -> dict[str, Any]:
    """Curves (estimator, seed, update) at own tuned step sizes if their tables are complete, else at a common one."""
    tables = NEEDS.load(profile)
    if "main" in tables:
        chosen, _ = split_by_choice(tables["main"].runs, tables["main_tuning"].runs)
        data = figure_data(tables["main"], chosen)
        edge = chosen_at_edge(tables["main_tuning"].runs, data["names"], [data["delay"]])
        return data | {"edge": edge[:, 0]}
    (common,) = tables.values()
    return figure_data(common)


def figure_data(tables: Runs, runs: pd.DataFrame | None = None) -> dict[str, Any]:
    """Every panel's metric at the largest delay, as logged: smoothing belongs to the drawing.

    `runs` picks one tuned step size per estimator (learning_rate is then an array); default: all, at a common one.
    """
    tuned = runs is not None
    runs = runs if tuned else tables.runs
    delay = int(runs["delay"].max())
    runs = runs[runs["delay"] == delay]
    names = in_order(runs["estimator"])
    rates = [float(runs.loc[runs["estimator"] == name, "learning_rate"].iloc[0]) for name in names]
    data: dict[str, Any] = {
        "experiment": tables.name,
        "names": names,
        "delay": delay,
        "update": np.array(sorted(set(tables.metrics["update"]))),
        "evaluated": np.array(sorted(set(tables.evaluations["update"]))),
        "learning_rate": np.array(rates) if tuned else rates[0],
        "gradient_clip": runs["gradient_clip"].iloc[0],
    }
    for metric in PANELS:
        table = tables.evaluations if metric == "accuracy" else tables.metrics
        data[metric] = curves(table, metric, runs, names, delay)
    return data


def running_mean(values: np.ndarray, window: int) -> np.ndarray:
    """Mean of each entry and the `window - 1` before it (fewer at the start), over the last axis; NaN stays NaN."""
    padded = np.concatenate([np.full((*values.shape[:-1], window - 1), np.nan), values], axis=-1)
    views = np.lib.stride_tricks.sliding_window_view(padded, window, axis=-1)
    with np.errstate(invalid="ignore"):
        found = np.nansum(views, -1) / np.isfinite(views).sum(-1)
    return np.where(np.isfinite(values), found, np.nan)


def draw(data: dict[str, Any]) -> Figure:
    """Six panels from the values of `figure_data`."""
    fig, axes = plt.subplots(2, 3, figsize=(14.0, 8.0), sharex=True)
    names = [str(name) for name in data["names"]]
    for letter, ax, (metric, (title, label)) in zip("abcdef", axes.flat, PANELS.items(), strict=True):
        update = data["evaluated"] if metric == "accuracy" else data["update"]
        values = data[metric] if metric == "accuracy" else running_mean(data[metric], WINDOW)
        _draw_panel(ax, names, update, values, metric)
        if int(data["delay"]) < update[-1]:
            ax.axvspan(0, int(data["delay"]), color="#F1F1F1", zorder=0, linewidth=0)
        ax.set_title(f"({letter}) {title}")
        ax.set_ylabel(label)
        ax.margins(x=0.01)
    clip = float(data["gradient_clip"])
    if np.isfinite(clip):
        axes[0, 1].axhline(clip, color="#444444", linewidth=0.9, linestyle="--")
        axes[0, 1].annotate(
            f"clip {clip:g}", (1, clip), xycoords=("axes fraction", "data"), xytext=(3, 0), va="center",
            textcoords="offset points", fontsize=8.5, color="#444444", annotation_clip=False,
        )  # fmt: skip
    for ax in axes[1]:
        ax.set_xlabel("update")
    n = data["accuracy"].shape[1]
    tuned = np.ndim(data["learning_rate"]) > 0
    headline(fig, (
        f"Delay {int(data['delay'])}, "
        + ("own tuned step sizes (legend; *: end of the grid)" if tuned else
           f"common step size {float(data['learning_rate']):g}, not tuned per method"),
        f"n = {n} seed{'s' * (n != 1)} (thin), mean (thick)", f"(b)-(f): running mean of {WINDOW} updates",
        "grey: rollouts still come from the initial policy",
    ))  # fmt: skip
    handles, labels = axes[0, 0].get_legend_handles_labels()
    if tuned:
        rates = [f"{rate:g}{'*' * bool(edge)}" for rate, edge in zip(data["learning_rate"], data["edge"], strict=True)]
        labels = [f"{label}, {rate}" for label, rate in zip(labels, rates, strict=True)]
    fig.legend(handles, labels, loc="outside lower center", ncols=len(names) if len(names) < 9 else 5)
    return fig


def _draw_panel(ax: Axes, names: list[str], update: np.ndarray, values: np.ndarray, metric: str) -> None:
    for name, seeds in zip(names, values, strict=True):
        style = estimator_style(name)
        strong = name in HEADLINE
        thin = {"color": style.color, "linewidth": 0.6, "alpha": 0.35 if strong else 0.2, "zorder": style.zorder - 1}
        ax.plot(update, seeds.T, **thin)
        ax.plot(update, np.nanmean(seeds, 0), **style.line(
            markevery=max(len(update) // 8, 1), markersize=4 if strong else 3, alpha=1 if strong else 0.55,
        ))  # fmt: skip
    if metric in LOG_FLOOR:
        ax.set_yscale("log")
        ax.set_ylim(bottom=max(LOG_FLOOR[metric], ax.get_ylim()[0]))
    if metric == "log_mass_mean":
        ax.set_yscale("symlog", linthresh=1)
        ticks = [t for t in (1, 0, -1, -3, -10, -30, -100) if ax.get_ylim()[0] <= t <= ax.get_ylim()[1]]
        ax.set_yticks(ticks, [str(t) for t in ticks])
        ax.minorticks_off()
