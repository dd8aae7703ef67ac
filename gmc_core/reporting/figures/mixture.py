"""Figure S11: the defensive mixture ratio with a cap on its group mean (ours, not the paper's) against GMC.

Each at its own tuned step size, on fresh seeds. Six differences a measure are read, so (c) and (d) show, beside each
95 % interval, the wider one that is corrected for six comparisons (Bonferroni).
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gmc_core.estimators import ESTIMATORS
from gmc_core.reporting.figure_style import LineStyle, estimator_style
from gmc_core.reporting.figures.needs import Needs
from gmc_core.reporting.figures.study_panels import (
    ACCURACY,
    AREA,
    MEASURE_NAMES,
    by_row,
    headline,
    seeds_note,
)
from gmc_core.reporting.profiles import Profile
from gmc_core.reporting.run_records import Runs
from gmc_core.reporting.step_sizes import chosen_at_edge
from gmc_core.reporting.study_arrays import MEASURES, REFERENCE, interval_rows, study_arrays

NEEDS = Needs(("mixture_tuning", "mixture"))
SHADES = ("#CFA89F", "#8C564B", "#4A231B", "#222222")  # by growing alpha


def compute(profile: Profile) -> dict[str, Any]:
    """Arrays (method, delay, seed), the mixtures by their alpha, and the differences to GMC with both intervals."""
    tables = NEEDS.load(profile)
    return figure_data(tables["mixture_tuning"], tables["mixture"])


def figure_data(tuning: Runs, tables: Runs) -> dict[str, Any]:
    """`study_arrays` with delays as settings; `<measure>_corrected`: the difference's interval after Bonferroni;
    `edge`, whether the tuned step size lies at an end of its grid, as (method, delay).
    """
    runs = tables.runs.assign(
        method=[_label(run.estimator, run.estimator_options) for run in tables.runs.itertuples()],
        setting=tables.runs["delay"],
    ).sort_values(["setting", "method"], kind="stable")
    generator = np.random.default_rng(12)
    data = study_arrays(tables, runs, generator)
    comparisons = (len(data["names"]) - 1) * len(data["settings"])
    level = 1 - 0.05 / comparisons
    for key in MEASURES:
        data[f"{key}_corrected"] = interval_rows(data[f"{key}_difference"], generator, level=level)
    by = ("estimator", "estimator_options")
    methods = runs.drop_duplicates("method").set_index("method").loc[data["names"], list(by)]
    edge = chosen_at_edge(
        tuning.runs, list(methods.itertuples(index=False, name=None)), sorted(set(runs["setting"])), by
    )
    return data | {"comparisons": comparisons, "edge": edge}


def _label(estimator: str, options: str) -> str:
    """`gmc`, or `mixture` with the alpha of its options or the default."""
    return estimator if estimator != "mixture" else f"mixture {ESTIMATORS[estimator](**json.loads(options)).alpha:g}"


def draw(data: dict[str, Any]) -> Figure:
    """A column per measure: what is reached (upper row), and the difference to GMC (lower)."""
    fig, axes = plt.subplots(2, 2, figsize=(11.5, 8.4), height_ratios=(1.15, 1))
    styles = _styles([str(name) for name in data["names"]])
    delays = [str(delay) for delay in data["settings"]]
    rows = [(k, j) for k in range(len(delays)) for j in range(len(styles))]
    labelled = [replace(styles[j], label=f"{styles[j].label}, delay {delays[k]}") for k, j in rows]
    for ax, key, letter, label in zip(axes[0], MEASURES, "ab", (ACCURACY, AREA), strict=True):
        notes = []
        for k, j in rows:
            lost = int(np.nansum(data["collapsed"][j, k]))
            rate = f"{data['learning_rate'][j, k]:g}{'*' * bool(data['edge'][j, k])}"
            notes.append(rate + f", lost {lost}" * (lost > 0))
        take = tuple(np.array(rows).T[::-1])
        by_row(ax, labelled, data[key][take], data[f"{key}_mean"][take], notes=notes)
        ax.set_title(f"({letter}) {MEASURE_NAMES[key].capitalize()}")
        ax.set_xlabel(label)
        ax.annotate(
            "step size", (1, 1), xycoords="axes fraction", xytext=(4, 2), textcoords="offset points", fontsize=7.5
        )
    for ax, key, letter in zip(axes[1], MEASURES, "cd", strict=True):
        _draw_differences(ax, data, key, labelled, rows)
        ax.set_title(f"({letter}) {MEASURE_NAMES[key].capitalize()}: mixture - GMC, same seed")
    for ax in (axes[0, 1], axes[1, 1]):
        ax.set_yticklabels([])
    headline(fig, (
        "Own tuned step sizes (*: at an end of the grid), fresh seeds", f"{int(data['updates'])} updates",
        seeds_note(data["final"].shape[-1]),
        f"thin: corrected for {int(data['comparisons'])} comparisons",
    ))  # fmt: skip
    return fig


def _draw_differences(ax: Axes, data: dict[str, Any], key: str, labelled: list, rows: list) -> None:
    kept = [(place, k, j) for place, (k, j) in enumerate(rows) if str(data["names"][j]) != REFERENCE]
    last = len(kept) - 1
    for y, (place, k, j) in enumerate(reversed(kept)):
        style = labelled[place]
        mean, low, high = data[f"{key}_difference_mean"][j, k]
        _, least, most = data[f"{key}_corrected"][j, k]
        ax.hlines(y, least, most, color=style.color, linewidth=0.9)
        ax.hlines(y, low, high, color=style.color, linewidth=2.6)
        ax.plot(
            data[f"{key}_difference"][j, k], np.full(data[key].shape[-1], y - 0.22), "|", color=style.color, alpha=0.7
        )
        ax.plot(mean, y, **style.points(marker="o", markersize=6))
    ax.axvline(0, color=estimator_style(REFERENCE).color, linewidth=1.6)
    ax.set_yticks(range(last + 1), [labelled[place].label for place, *_ in reversed(kept)])
    ax.set(xlabel="difference (ticks: single seeds)", ylim=(-0.6, last + 0.6))


def _styles(names: list[str]) -> list[LineStyle]:
    """GMC's own, and shades of the mixture's colour by alpha."""
    styles, shades = [], iter(SHADES)
    for name in names:
        base, _, alpha = name.partition(" ")
        style = estimator_style(base)
        if alpha:
            style = replace(style, label=rf"mixture $\alpha$ {alpha}, ours", color=next(shades), marker="o")
        styles.append(style)
    return styles
