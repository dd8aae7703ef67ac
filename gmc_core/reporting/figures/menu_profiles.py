"""Figure S8: the core menu over all positive delays together: performance profiles, interquartile means, odds.

Each method stands at its own tuned step sizes, on fresh seeds; a setting is a delay, and seeds are resampled within
each (Agarwal et al. 2021, arXiv 2108.13264).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gmc_core.reporting.figures.needs import Needs
from gmc_core.reporting.figures.study_panels import MEASURE_NAMES, headline, styles_of
from gmc_core.reporting.profiles import Profile
from gmc_core.reporting.run_comparisons import by_seed, in_order
from gmc_core.reporting.run_records import Runs
from gmc_core.reporting.statistics import performance_profile, probability_of_improvement, stratified_interval
from gmc_core.reporting.step_sizes import split_by_choice
from gmc_core.reporting.study_arrays import MEASURES, REFERENCE

if TYPE_CHECKING:
    import pandas as pd

NEEDS = Needs(("main_tuning", "main"))
LEVELS = np.linspace(0, 1, 101)
RESAMPLES = 2000


def compute(profile: Profile) -> dict[str, Any]:
    """Aggregates over the positive delays, of the methods that were run at all of them."""
    tables = NEEDS.load(profile)
    return figure_data(tables["main_tuning"], tables["main"])


def figure_data(tuning: Runs, fresh: Runs) -> dict[str, Any]:
    """profile_<measure> (method, 3, level); iqm_<measure> (choice, method, 3), at the chosen step size and at the next
    larger one; odds_<measure> (method, 3) of beating GMC, 0.5 for GMC itself. Estimate, low and high.
    """
    parts = [part[part["delay"] > 0] for part in split_by_choice(fresh.runs, tuning.runs)]
    delays = sorted(set(parts[0]["delay"]))
    names = [
        name
        for name in in_order(parts[0]["estimator"])
        if set(parts[0].query("estimator == @name")["delay"]) == set(delays)
    ]
    generator = np.random.default_rng(8)
    data: dict[str, Any] = {
        "experiment": [tuning.name, fresh.name],
        "names": names,
        "delay": np.array(delays),
        "updates": int(fresh.runs["updates"].max()),
        "seeds": int(parts[0].groupby(["estimator", "delay"])["seed"].nunique().min()),
        "level": LEVELS,
    }
    for key, column in MEASURES.items():
        chosen, larger = (_strata(part, column, names, delays) for part in parts)
        data[f"profile_{key}"] = np.stack([
            np.stack(performance_profile(chosen[name], LEVELS, generator, resamples=RESAMPLES)) for name in names
        ])  # fmt: skip
        data[f"iqm_{key}"] = np.array([
            [_numbers(stratified_interval(strata[name], generator, resamples=RESAMPLES)) for name in names]
            for strata in (chosen, larger)
        ])  # fmt: skip
        data[f"odds_{key}"] = np.array([
            (0.5, 0.5, 0.5)
            if name == REFERENCE
            else _numbers(
                probability_of_improvement(chosen[name], chosen[REFERENCE], generator, resamples=RESAMPLES)
            )
            for name in names
        ])  # fmt: skip
    return data


def _strata(runs: pd.DataFrame, column: str, names: list, delays: list) -> dict[str, list[np.ndarray]]:
    """Of every method, one array of seeds per delay."""
    values = by_seed(runs[runs["estimator"].isin(names)], column, names, delays)
    return {name: [seeds[np.isfinite(seeds)] for seeds in own] for name, own in zip(names, values, strict=True)}


def _numbers(interval: Any) -> tuple[float, float, float]:
    return interval.estimate, interval.low, interval.high


def draw(data: dict[str, Any]) -> Figure:
    """Four panels from the values of `figure_data`."""
    fig, axes = plt.subplots(2, 2, figsize=(11.5, 9.2))
    styles = styles_of(data["names"])
    for ax, key, letter in zip(axes[0], MEASURES, "ab", strict=True):
        for style, (profile, low, high) in zip(styles, data[f"profile_{key}"], strict=True):
            ax.fill_between(data["level"], low, high, color=style.color, alpha=0.10, linewidth=0)
            ax.plot(data["level"], profile, **style.line(markevery=10, markersize=4))
        ax.set_title(f"({letter}) Profile of {MEASURE_NAMES[key]}")
        ax.set(xlabel=f"{MEASURE_NAMES[key]} x", ylabel="share of runs above x, mean over delays", ylim=(-0.03, 1.03))
    _draw_rows(axes[1, 0], styles, data, "iqm")
    axes[1, 0].set_title("(c) Interquartile mean over delays and seeds")
    axes[1, 0].set_xlabel("accuracy (open: final, filled: area; faint: next larger step size)")
    _draw_rows(axes[1, 1], styles, data, "odds")
    axes[1, 1].axvline(0.5, color=styles_of([REFERENCE])[0].color, linewidth=1.4)
    axes[1, 1].set_title("(d) How often a run beats one of GMC")
    axes[1, 1].set_xlabel("probability, mean over delays (open: final, filled: area)")
    fig.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
    headline(fig, (
        f"Own tuned step sizes, delays {', '.join(map(str, data['delay']))}",
        f"n = {int(data['seeds'])} fresh seeds a delay, 95 % intervals, seeds resampled within delays",
        f"{int(data['updates'])} updates",
    ))  # fmt: skip
    return fig


def _draw_rows(ax: Axes, styles: list, data: dict[str, Any], what: str) -> None:
    last = len(styles) - 1
    for row, style in enumerate(styles):
        for key, height, face in (("final", 0.15, "white"), ("area", -0.15, style.color)):
            found = data[f"{what}_{key}"]
            for mean, low, high, strength in _shades(found, row):
                y = last - row + height
                ax.hlines(y, low, high, color=style.color, linewidth=1.4, alpha=strength)
                ax.plot(mean, y, marker="o", color=style.color, markerfacecolor=face, markersize=5.5, alpha=strength)
    ax.set_yticks(range(last + 1), [style.label for style in reversed(styles)])
    ax.set(xlim=(-0.03, 1.03), ylim=(-0.6, last + 0.6))


def _shades(found: np.ndarray, row: int) -> list[tuple[float, float, float, float]]:
    """What is drawn in a row: faint the next larger step size, if there is one, then the chosen one."""
    if found.ndim == 2:
        return [(*found[row], 1.0)]
    return [(*found[1, row], 0.35), (*found[0, row], 1.0)]
