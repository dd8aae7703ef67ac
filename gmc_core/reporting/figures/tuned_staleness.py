"""Figure 5 once `main` is complete: every method at its own tuned step size, beside one common step size.

Own step sizes come from the tuning runs by the rule of `step_sizes`; the accuracies come from fresh seeds at exactly
these. The common step size is the one that is best for all methods and delays together; its runs are tuning runs, one
or two seeds a point, and no verdict.
"""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gmc_core.reporting.figures.study_panels import (
    ACCURACY,
    AREA,
    difference_rows,
    headline,
    method_legend,
    over_settings,
    seeds_note,
    styles_of,
)
from gmc_core.reporting.run_comparisons import by_seed, falls_table, in_order
from gmc_core.reporting.run_records import Runs
from gmc_core.reporting.step_sizes import chosen_at_edge, common_step_size, split_by_choice
from gmc_core.reporting.study_arrays import MEASURES, REFERENCE, difference_to, interval_rows, shared_by_seeds

BOOTSTRAP_SEED = 5
PANELS = {"final": ("Final accuracy", ACCURACY), "area": ("Area under the curve", AREA)}


def figure_data(tuning: Runs, fresh: Runs) -> dict[str, Any]:
    """Arrays (estimator, delay, seed) at own step sizes: both measures, their differences to GMC, `collapsed`, with
    `_mean` as mean, low, high; `step_size` and `edge` (the choice lies at an end of its grid) as (estimator, delay);
    `common_...` the same measures of the tuning runs at `common_rate`. NaN where a method was not run.
    """
    chosen, _ = split_by_choice(fresh.runs, tuning.runs)
    chosen = chosen.drop(columns="collapsed").merge(falls_table(fresh), on="run_id")
    names, delays = in_order(chosen["estimator"]), sorted(set(chosen["delay"]))
    rate = common_step_size(tuning.runs[tuning.runs["delay"] > 0])
    common = tuning.runs[np.isclose(tuning.runs["learning_rate"], rate, rtol=1e-6)]
    generator = np.random.default_rng(BOOTSTRAP_SEED)
    data: dict[str, Any] = {
        "experiment": [tuning.name, fresh.name],
        "names": names,
        "delay": np.array(delays),
        "updates": int(chosen["updates"].max()),
        "common_rate": rate,
        "step_size": shared_by_seeds(by_seed(chosen, "learning_rate", names, delays)),
        "collapsed": by_seed(chosen, "collapsed", names, delays),
    }
    data["edge"] = chosen_at_edge(tuning.runs, names, delays)
    for key, column in MEASURES.items():
        data[key] = by_seed(chosen, column, names, delays)
        data[f"{key}_difference"] = difference_to(data[key], names)
        data[f"common_{key}"] = by_seed(common, column, names, delays)
        for name in (key, f"{key}_difference", f"common_{key}"):
            data[f"{name}_mean"] = interval_rows(data[name], generator)
    return data


def draw(data: dict[str, Any]) -> Figure:
    """Six panels: own step sizes, one common step size, and differences to GMC at own step sizes."""
    fig = plt.figure(figsize=(12.5, 15.6))
    rows = fig.subfigures(3, 1, height_ratios=(1, 1.16, 1.42))
    core = np.isfinite(data["final_mean"][..., 0]).all(1)
    for row, prefix, letters, where in ((0, "", "ab", "own step size"), (1, "common_", "cd", "one step size")):
        for ax, (key, (title, label)), letter in zip(rows[row].subplots(1, 2), PANELS.items(), letters, strict=True):
            _draw_delays(ax, data, prefix + key, core, hollow=data["edge"] if row == 0 else None)
            ax.set_title(f"({letter}) {title}, {where}")
            ax.set_ylabel(label)
    method_legend(rows[1], rows[0].axes, ncols=6)
    study = [k for k, delay in enumerate(data["delay"]) if delay > 0 and np.isfinite(data["final_mean"][:, k, 0]).all()]
    shown = [study[-1] if study else len(data["delay"]) - 1, len(data["delay"]) - 1]
    for ax, k, letter in zip(rows[2].subplots(1, 2), shown, "ef", strict=True):
        _draw_differences(ax, data, k)
        ax.set_title(f"({letter}) Difference to GMC at delay {data['delay'][k]}")
    rows[2].legend(*rows[2].axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    common = np.isfinite(data["common_final"]).sum(-1)
    counts = sorted({int(n) for n in common[common > 0]})
    headline(
        fig,
        (
            "(a), (b), (e), (f): each method at its own tuned step size (open marker, *: at an end of its grid)",
            f"fresh seeds, {seeds_note(data['final'].shape[-1])}; differences within a seed",
        ),
        (
            f"(c), (d): tuning runs at step size {float(data['common_rate']):g} for all, "
            f"n = {' or '.join(map(str, counts))} seed{'s' * (max(counts) > 1)}, every seed shown: not a verdict",
            f"{int(data['updates'])} updates",
        ),
    )
    return fig


def _draw_delays(
    ax: Axes, data: dict[str, Any], key: str, core: np.ndarray, *, hollow: np.ndarray | None = None
) -> None:
    """Lines for the methods of every delay; the rest of the menu as small marks right of them, where it was run."""
    styles, delays = styles_of(data["names"]), [str(delay) for delay in data["delay"]]
    means, values = data[f"{key}_mean"], data[key]
    own = [style for style, whole in zip(styles, core, strict=True) if whole]
    place = over_settings(
        ax, own, delays, values[core], means[core], step=0.04, hollow=None if hollow is None else hollow[core]
    )
    first = 0.04 * (len(own) / 2 + 1)
    for j, k in enumerate(np.flatnonzero(~core)):
        x = place + first + 0.035 * j
        mean, low, high = means[k].T
        ax.vlines(x, low, high, color=styles[k].color, linewidth=0.9)
        ax.plot(x, mean, **styles[k].points(markersize=5))
        if hollow is not None and hollow[k].any():
            ax.plot(
                x[hollow[k]], mean[hollow[k]], **styles[k].points(label=None, markersize=5, markerfacecolor="white")
            )
    ax.set_xlim(-0.3, place[-1] + 0.3)
    ax.set_xlabel("delay (updates)")


def _draw_differences(ax: Axes, data: dict[str, Any], k: int) -> None:
    """All methods but GMC that were run at the k-th delay, with the step size of each and how many runs it lost."""
    others = [
        j for j, name in enumerate(data["names"]) if str(name) != REFERENCE and np.isfinite(data["final_mean"][j, k, 0])
    ]
    notes = []
    for j in others:
        seeds = data["collapsed"][j, k]
        lost, n = int(np.nansum(seeds)), int(np.isfinite(seeds).sum())
        notes.append(
            f"{data['step_size'][j, k]:g}{'*' * bool(data['edge'][j, k])}" + (f", lost {lost}/{n}" * (lost > 0))
        )
    difference_rows(
        ax,
        styles_of(np.asarray(data["names"])[others]),
        {key: data[f"{key}_difference"][others, k] for key in MEASURES},
        {key: data[f"{key}_difference_mean"][others, k] for key in MEASURES},
        notes=notes,
    )
    j = list(data["names"]).index(REFERENCE)
    own = f"GMC {data['step_size'][j, k]:g}{'*' * bool(data['edge'][j, k])}"
    if lost := int(np.nansum(data["collapsed"][j, k])):
        own += f", lost {lost}"
    ax.annotate(
        f"step size\n({own})", (1, 1), xycoords="axes fraction", xytext=(4, 2), textcoords="offset points", fontsize=8,
        color="#444444",
    )  # fmt: skip
