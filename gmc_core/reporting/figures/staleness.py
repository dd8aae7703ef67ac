"""Figure 5: final accuracy and area under the curve against delay, for every method of the experiment.

All methods at one common step size, which was not tuned for any of them: a first picture, not a verdict. (c) shows the
difference to GMC in the same seeds.
"""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gmc_core.reporting.direct_labels import label_ends
from gmc_core.reporting.figure_style import estimator_style
from gmc_core.reporting.profiles import Profile
from gmc_core.reporting.run_comparisons import by_seed, falls_table, in_order
from gmc_core.reporting.run_records import Runs, load_runs
from gmc_core.reporting.statistics import FEW, bootstrap_interval

REFERENCE = "gmc"
MEASURES = {"final": "final accuracy", "area": "area under the curve"}
BOOTSTRAP_SEED = 5


def experiment_of(profile: Profile) -> str:
    """The experiment whose tables figures 5 and 6 show."""
    return profile.choose(smoke="smoke", cpu="first_staleness")


def compute(profile: Profile) -> dict[str, Any]:
    """Arrays (estimator, delay, seed) from the tables of the profile's experiment."""
    return figure_data(load_runs(experiment_of(profile), root=profile.runs))


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
    for key, metric in (("final", "final_accuracy"), ("area", "area_under_curve")):
        data[key] = by_seed(runs, metric, names, delays)
        data[f"{key}_difference"] = data[key] - data[key][names.index(REFERENCE)]
        for name in (key, f"{key}_difference"):
            data[f"{name}_mean"] = np.array([[_interval(seeds, generator) for seeds in row] for row in data[name]])
    return data


def _interval(seeds: np.ndarray, generator: np.random.Generator) -> tuple[float, float, float]:
    present = seeds[np.isfinite(seeds)]
    if not len(present):
        return (np.nan, np.nan, np.nan)
    found = bootstrap_interval(present, generator)
    return (found.estimate, found.low, found.high)


def draw(data: dict[str, Any]) -> Figure:
    """Four panels from the values of `figure_data`; the lower two need at least one delay above 0."""
    delayed = [k for k, delay in enumerate(data["delay"]) if delay > 0][-2:]
    fig = plt.figure(figsize=(12.5, 9.4))
    rows = fig.subfigures(2, 1, height_ratios=(1.1, 1))  # laid out apart: their labels differ in width
    left, right = rows[0].subplots(1, 2)
    _draw_delays(left, data, "final")
    left.set_title("(a) Final accuracy")
    left.set_ylabel("accuracy of one sampled response")
    _draw_delays(right, data, "area")
    right.set_title("(b) Area under the curve")
    right.set_ylabel("mean accuracy over the evaluations of a run")
    lower = rows[1].subplots(1, max(len(delayed), 1), sharey=True, squeeze=False)[0]
    for ax, k, letter in zip(lower, delayed, "cd", strict=False):
        _draw_differences(ax, data, k)
        ax.set_title(f"({letter}) Difference to GMC at delay {data['delay'][k]}, same seed")
    if delayed:
        rows[1].legend(*lower[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    n = data["final"].shape[-1]
    count = f"n = {n} seed{'s' * (n != 1)}"
    fig.suptitle(
        f"Common step size {float(data['learning_rate']):g}, not tuned per method: not a verdict   ·   "
        f"{int(data['updates'])} updates   ·   "
        + (f"{count}, every seed shown, line: mean" if n < FEW else f"{count}, mean, 95 % interval"),
        x=0.01, ha="left", fontsize=10,
    )  # fmt: skip
    return fig


def _draw_delays(ax: Axes, data: dict[str, Any], key: str) -> None:
    names = [str(name) for name in data["names"]]
    place = np.arange(len(data["delay"]), dtype=float)
    few = data[key].shape[-1] < FEW
    for k, name in enumerate(names):
        style, seeds = estimator_style(name), data[key][k]
        mean, low, high = data[f"{key}_mean"][k].T
        x = place + 0.045 * (k - (len(names) - 1) / 2)  # side by side: several methods share a point
        if few:
            points = style.points(label=None, markersize=4, alpha=0.55, marker="o", markeredgewidth=0)
            ax.plot(np.repeat(x, seeds.shape[-1]), seeds.ravel(), **points)
        else:
            ax.vlines(x, low, high, color=style.color, linewidth=1.2, zorder=style.zorder)
        ax.plot(x, mean, **style.line(markersize=6))
    ax.set(ylim=(-0.03, 1.03), xlim=(-0.3, place[-1] + 0.25), xlabel="delay (updates)")
    ax.set_xticks(place, [str(delay) for delay in data["delay"]])
    styles = [estimator_style(name) for name in names]
    ends = data[f"{key}_mean"][:, -1, 0]
    label_ends(ax, place[-1] + 0.18, ends, [s.label for s in styles], [s.color for s in styles])


def _draw_differences(ax: Axes, data: dict[str, Any], delay: int) -> None:
    """Each seed's difference to GMC in both measures (with enough seeds: mean and interval); left of GMC is worse."""
    names = [str(name) for name in data["names"]]
    others = [k for k, name in enumerate(names) if name != REFERENCE]
    for place, k in enumerate(reversed(others)):
        style = estimator_style(names[k])
        for key, height, face in (("final", 0.17, "white"), ("area", -0.17, style.color)):
            look = {"color": style.color, "markerfacecolor": face, "marker": "o", "linestyle": "none", "markersize": 5}
            seeds = data[f"{key}_difference"][k, delay]
            mean, low, high = data[f"{key}_difference_mean"][k, delay]
            if len(seeds) < FEW:
                ax.plot(seeds, np.full(len(seeds), place + height), **look)
            else:
                ax.hlines(place + height, low, high, color=style.color, linewidth=1.4)
                ax.plot(mean, place + height, **look)
    ax.axvline(0, color=estimator_style(REFERENCE).color, linewidth=1.6)
    ax.annotate("GMC", (0, 1), xycoords=("data", "axes fraction"), xytext=(4, -9), textcoords="offset points",
                color=estimator_style(REFERENCE).color, fontsize=8.5)  # fmt: skip
    ax.set_xscale("symlog", linthresh=0.05, linscale=0.8)
    ticks = [-1, -0.5, -0.2, -0.1, -0.05, 0, 0.05, 0.1, 0.2, 0.5, 1]
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks], rotation=45)
    ax.minorticks_off()
    ax.set_xlim(-1.25, 1.25)
    ax.set_yticks(range(len(others)), [estimator_style(names[k]).label for k in reversed(others)])
    for key, face in (("final", "white"), ("area", "#444444")):
        ax.plot([], [], marker="o", linestyle="none", color="#444444", markerfacecolor=face, label=MEASURES[key])
    ax.set(xlabel="method - GMC (axis linear within 0.05 of 0, logarithmic outside)", ylim=(-0.6, len(others) - 0.2))
