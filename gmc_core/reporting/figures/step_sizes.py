"""Figure S7: area under the curve against step size, for every method and delay of the tuning runs.

The table says which step size the rule chose (smoothed scores) and the range around the best one that is about as good.
Tuning runs, one or two seeds a point: a map of what is usable, not a comparison.
"""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gmc_core.reporting.figures.needs import Needs
from gmc_core.reporting.figures.study_panels import count_grid, headline, method_legend, styles_of
from gmc_core.reporting.profiles import Profile
from gmc_core.reporting.run_comparisons import in_order
from gmc_core.reporting.run_records import Runs
from gmc_core.reporting.statistics import usable_range
from gmc_core.reporting.step_sizes import choose_step_sizes, common_step_size

NEEDS = Needs(("main_tuning",))
SHARE = 0.95  # of the best score: what counts as usable


def compute(profile: Profile) -> dict[str, Any]:
    """Scores (method, delay, step size), the choices and the usable ranges."""
    return figure_data(NEEDS.load(profile)["main_tuning"])


def figure_data(tables: Runs) -> dict[str, Any]:
    """score: mean over the tuning seeds; chosen, edge, low, high as (method, delay): the rule's choice, whether it lies
    at an end of the grid, and the usable range, NaN where no step size scores above the accuracy before training.
    """
    runs = tables.runs
    names, delays, rates = in_order(runs["estimator"]), sorted(set(runs["delay"])), sorted(set(runs["learning_rate"]))
    mean = runs.groupby(["estimator", "delay", "learning_rate"])["area_under_curve"].mean()
    index = [(name, delay, rate) for name in names for delay in delays for rate in rates]
    score = mean.reindex(index).to_numpy(dtype=float).reshape(len(names), len(delays), len(rates))
    seeds = runs.groupby(["estimator", "delay"])["seed"].nunique()
    start = float(runs["initial_accuracy"].mean())
    chosen, low, high = (np.full(score.shape[:2], np.nan) for _ in range(3))
    edge, count = np.zeros(score.shape[:2], dtype=bool), np.zeros(score.shape[:2], dtype=int)
    for row in choose_step_sizes(runs).itertuples():
        place = names.index(row.estimator), delays.index(row.delay)
        chosen[place], edge[place], count[place] = row.step_size, row.edge, seeds[row.estimator, row.delay]
        there = np.isfinite(score[place])
        if score[place][there].max() > start:
            found = usable_range(np.array(rates)[there], score[place][there], share=SHARE)
            low[place], high[place] = found.low, found.high
    return {
        "experiment": tables.name,
        "names": names,
        "delay": np.array(delays),
        "rate": np.array(rates),
        "updates": int(runs["updates"].max()),
        "start": start,
        "common_rate": common_step_size(runs[runs["delay"] > 0]),
        "score": score,
        "seeds": count,
        "chosen": chosen,
        "edge": edge,
        "low": low,
        "high": high,
    }


def draw(data: dict[str, Any]) -> Figure:
    """A panel per delay, and the table of choices and usable ranges."""
    core, delays = _core(data), data["delay"]
    panels = [(k, np.flatnonzero(core | (delays[k] == 0))) for k in range(len(delays))]
    study = [k for k, _ in panels if delays[k] > 0 and np.isfinite(data["score"][~core, k]).any()]
    titles = [f"delay {delay}" for delay in delays]
    panels += [(k, np.flatnonzero(~core)) for k in study]
    titles += [f"rest of the menu, delay {delays[k]}" for k in study]
    rows = -(-len(panels) // 3)
    fig = plt.figure(figsize=(12.5, 3.5 * rows + 6.2))
    upper, lower = fig.subfigures(2, 1, height_ratios=(3.5 * rows, 6.2))
    axes = upper.subplots(rows, 3, sharex=True, sharey=True, squeeze=False).flat
    for letter, ax, (k, members), title in zip("abcdefghi", axes, panels, titles, strict=False):
        _draw_scores(ax, data, k, members)
        ax.set_title(f"({letter}) {title[0].upper()}{title[1:]}")
    for ax in axes[len(panels) :]:
        ax.set_axis_off()
    for place, ax in enumerate(axes[: len(panels)]):
        if place + 3 >= len(panels):  # nothing below it
            ax.tick_params(labelbottom=True)
            ax.set_xlabel("step size (dotted: the common one)")
        if place % 3 == 0:
            ax.set_ylabel("area under the curve")
    method_legend(upper, [*axes[1 : len(panels)], axes[0]], ncols=6)
    ax = lower.subplots()
    _draw_table(ax, data)
    ax.set_title(
        f"({'abcdefghij'[len(panels)]}) Chosen step size [usable range: at least {100 * SHARE:g} % of the best]"
    )
    counts = sorted({int(n) for n in data["seeds"].ravel() if n})
    headline(fig, (
        f"Tuning runs, n = {' or '.join(map(str, counts))} seed{'s' * (max(counts) > 1)} a point, mean",
        f"{int(data['updates'])} updates", "large marker: the rule's choice, from smoothed scores",
        "*: at an end of the grid",
    ))  # fmt: skip
    return fig


def _core(data: dict[str, Any]) -> np.ndarray:
    """Methods that were tuned at every positive delay."""
    return np.isfinite(data["chosen"][:, data["delay"] > 0]).all(1)


def _draw_scores(ax: Axes, data: dict[str, Any], k: int, members: np.ndarray) -> None:
    members = [j for j in members if np.isfinite(data["score"][j, k]).any()]
    styles = styles_of(np.asarray(data["names"])[members])
    for j, style in zip(members, styles, strict=True):
        ax.plot(data["rate"], data["score"][j, k], **style.line(markersize=3.5, linewidth=style.linewidth * 0.8))
        at = np.isclose(data["rate"], data["chosen"][j, k])
        ax.plot(data["rate"][at], data["score"][j, k][at], **style.points(label=None, markersize=8.5, zorder=4))
    ax.axvline(float(data["common_rate"]), color="#777777", linewidth=1, linestyle=":")
    ax.set_xscale("log")
    shown = data["rate"][:: max(len(data["rate"]) // 3, 1)]
    ax.set_xticks(shown, [f"{rate:g}" for rate in shown])
    ax.minorticks_off()
    ax.set_ylim(-0.03, 1.03)


def _draw_table(ax: Axes, data: dict[str, Any]) -> None:
    """Per method and delay: the choice and the usable range; the darker, the wider the range in factors."""
    widest = np.log(data["rate"][-1] / data["rate"][0])
    with np.errstate(invalid="ignore"):
        share = np.log(data["high"] / data["low"]) / widest
    texts = np.full(share.shape, "", dtype=object)
    for place in np.ndindex(share.shape):
        if not np.isfinite(data["chosen"][place]):
            continue
        own = f"{data['chosen'][place]:g}{'*' * bool(data['edge'][place])}"
        if np.isfinite(share[place]):
            texts[place] = f"{own}  [{data['low'][place]:g}, {data['high'][place]:g}]"
        else:
            texts[place], share[place] = f"{own}  [none]", 0.0
    names = [style.label for style in styles_of(data["names"])]
    count_grid(ax, names, [f"delay {delay}" for delay in data["delay"]], share, texts, fontsize=7.5)
