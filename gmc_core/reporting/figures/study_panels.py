"""Panels that several figures of runs share: methods over settings, by category, as differences, and who fell.

With fewer than five seeds every seed is drawn beside the mean; from five on the mean with its interval. All methods of
a panel stand side by side around a setting, because several of them often share a value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gmc_core.reporting.figure_style import LineStyle, estimator_style
from gmc_core.reporting.statistics import FEW

ACCURACY = "accuracy of one sampled response"
AREA = "mean accuracy over the evaluations of a run"
AREA_SHORT = "mean accuracy of a run"
MEASURE_NAMES = {"final": "final accuracy", "area": "area under the curve"}
_GREY = "#444444"


def styles_of(names: Any) -> list[LineStyle]:
    """The styles of estimators, in order."""
    return [estimator_style(str(name)) for name in names]


def seeds_note(n: int, mean: str = "line") -> str:
    """What a figure of runs says of its seeds, e.g. "n = 3 seeds, every seed shown, line: mean"."""
    count = f"n = {n} seed{'s' * (n != 1)}"
    return f"{count}, every seed shown, {mean}: mean" if n < FEW else f"{count}, mean, 95 % interval"


def headline(fig: Figure, *lines: Sequence[str]) -> None:
    """Above the panels: what is shown and from how many seeds; the parts of each line are set apart by dots."""
    fig.suptitle("\n".join("   ·   ".join(parts) for parts in lines), x=0.01, ha="left", fontsize=10)


def over_settings(
    ax: Axes,
    styles: Sequence[LineStyle],
    labels: Sequence[str],
    values: np.ndarray,
    means: np.ndarray,
    *,
    step: float = 0.045,
    hollow: np.ndarray | None = None,
    ylim: tuple[float, float] | None = (-0.03, 1.03),
) -> np.ndarray:
    """One line per method over settings set side by side; returns their places.

    values: (method, setting, seed); means: (method, setting, 3), mean, low, high. hollow: (method, setting), where the
    marker is drawn open. A setting that a method was not run at is left out.
    """
    place = np.arange(len(labels), dtype=float)
    few = values.shape[-1] < FEW
    for k, (style, seeds) in enumerate(zip(styles, values, strict=True)):
        mean, low, high = means[k].T
        x = place + step * (k - (len(styles) - 1) / 2)
        if few:
            points = style.points(label=None, markersize=4, alpha=0.55, marker="o", markeredgewidth=0)
            ax.plot(np.repeat(x, seeds.shape[-1]), seeds.ravel(), **points)
        else:
            ax.vlines(x, low, high, color=style.color, linewidth=1.2, zorder=style.zorder)
        there = np.isfinite(mean)
        ax.plot(x[there], mean[there], **style.line(markersize=6))
        if hollow is not None and (open_ := there & hollow[k].astype(bool)).any():
            ax.plot(x[open_], mean[open_], **style.points(label=None, markersize=6, markerfacecolor="white"))
    if ylim is not None:
        ax.set_ylim(*ylim)
    ax.set_xlim(-0.3, place[-1] + 0.25)
    ax.set_xticks(place, list(labels))
    return place


def by_category(
    ax: Axes,
    styles: Sequence[LineStyle],
    labels: Sequence[str],
    values: np.ndarray,
    means: np.ndarray,
    *,
    spread: float = 0.7,
    xlim: tuple[float, float] | None = (-0.03, 1.03),
) -> None:
    """Categories from top to bottom, the methods of each beneath one another; shapes as in `over_settings`."""
    few, last = values.shape[-1] < FEW, len(labels) - 1
    for row in range(0, len(labels), 2):
        ax.axhspan(last - row - 0.5, last - row + 0.5, color="#F4F4F4", linewidth=0, zorder=0)
    for k, style in enumerate(styles):
        shift = spread * (0.5 - (k + 0.5) / len(styles))
        mean, low, high = means[k].T
        y = last - np.arange(len(labels)) + shift
        if few:
            seeds = values[k]
            points = style.points(label=None, markersize=3.5, alpha=0.55, marker="o", markeredgewidth=0)
            ax.plot(seeds.ravel(), np.repeat(y, seeds.shape[-1]), **points)
        else:
            ax.hlines(y, low, high, color=style.color, linewidth=1.4, zorder=style.zorder)
        ax.plot(mean, y, **style.points(markersize=6))
    if xlim is not None:
        ax.set_xlim(*xlim)
    ax.set_ylim(-0.5, last + 0.5)
    ax.set_yticks(range(last + 1), list(labels)[::-1])
    ax.grid(visible=False, axis="y")


def difference_rows(
    ax: Axes,
    styles: Sequence[LineStyle],
    values: Mapping[str, np.ndarray],
    means: Mapping[str, np.ndarray],
    *,
    notes: Sequence[str] = (),
) -> None:
    """Differences to GMC, a row per method: final accuracy (open) above area under the curve (filled), 0 is GMC.

    values: for "final" and "area" (method, seed), without GMC; means: (method, 3). `notes` are written right of the
    rows. The axis is linear within 0.05 of 0 and logarithmic outside; left of 0 is worse than GMC.
    """
    last = len(styles) - 1
    for row, style in reversed(list(enumerate(styles))):
        for key, height, face in (("final", 0.17, "white"), ("area", -0.17, style.color)):
            look = {"color": style.color, "markerfacecolor": face, "marker": "o", "linestyle": "none", "markersize": 5}
            seeds, (mean, low, high), y = values[key][row], means[key][row], last - row + height
            if len(seeds) < FEW:
                ax.plot(seeds, np.full(len(seeds), y), **look)
            else:
                ax.hlines(y, low, high, color=style.color, linewidth=1.4)
                ax.plot(mean, y, **look)
    note_rows(ax, notes)
    gmc = estimator_style("gmc")
    ax.axvline(0, color=gmc.color, linewidth=1.6)
    ax.annotate("GMC", (0, 1), xycoords=("data", "axes fraction"), xytext=(4, -9), textcoords="offset points",
                color=gmc.color, fontsize=8.5)  # fmt: skip
    ax.set_xscale("symlog", linthresh=0.05, linscale=0.8)
    ticks = [-1, -0.5, -0.2, -0.1, -0.05, 0, 0.05, 0.1, 0.2, 0.5, 1]
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks], rotation=45)
    ax.minorticks_off()
    ax.set_xlim(-1.25, 1.25)
    ax.set_yticks(range(last + 1), [style.label for style in reversed(styles)])
    for key, face in (("final", "white"), ("area", _GREY)):
        ax.plot([], [], marker="o", linestyle="none", color=_GREY, markerfacecolor=face, label=MEASURE_NAMES[key])
    ax.set(xlabel="method - GMC (axis linear within 0.05 of 0, logarithmic outside)", ylim=(-0.6, last + 0.8))


def by_row(
    ax: Axes,
    styles: Sequence[LineStyle],
    values: np.ndarray,
    means: np.ndarray,
    *,
    reference: int | None = None,
    notes: Sequence[str] = (),
) -> None:
    """One row per style from top to bottom: values (row, seed), means (row, 3); a thin line marks the reference."""
    last = len(styles) - 1
    for row, (style, seeds, (mean, low, high)) in enumerate(zip(styles, values, means, strict=True)):
        y = last - row
        if len(seeds) < FEW:
            points = style.points(label=None, markersize=4, alpha=0.55, marker="o", markeredgewidth=0)
            ax.plot(seeds, np.full(len(seeds), y), **points)
        else:
            ax.hlines(y, low, high, color=style.color, linewidth=1.4, zorder=style.zorder)
        ax.plot(mean, y, **style.points(markersize=6))
    if reference is not None:
        ax.axvline(means[reference, 0], color=styles[reference].color, linewidth=0.9, linestyle=":", zorder=1)
    note_rows(ax, notes)
    ax.set_yticks(range(last + 1), [style.label for style in reversed(styles)])
    ax.set_ylim(-0.6, last + 0.6)


def difference_note(mean: np.ndarray) -> str:
    """`-0.021 [-0.043, 0.002]`, without the interval where there is none."""
    estimate, low, high = mean
    return f"{estimate:+.3f} [{low:+.3f}, {high:+.3f}]" if np.isfinite(low) else f"{estimate:+.3f}"


def note_rows(ax: Axes, notes: Sequence[str]) -> None:
    """`notes`, one per row from top to bottom, right of a panel whose lowest row is at 0."""
    for row, note in zip(reversed(range(len(notes))), notes, strict=True):
        ax.annotate(
            note, (1, row), xycoords=("axes fraction", "data"), xytext=(4, 0), textcoords="offset points",
            va="center", fontsize=7.5, color=_GREY, annotation_clip=False,
        )  # fmt: skip


def count_grid(
    ax: Axes, rows: Sequence[str], columns: Sequence[str], share: np.ndarray, texts: np.ndarray, *, fontsize: float = 8
) -> None:
    """A table (row, column) of texts, shaded by `share` in [0, 1]; NaN is left white and without text."""
    filled = np.ma.masked_invalid(share)
    ax.pcolormesh(filled, cmap="Oranges", vmin=0, vmax=1.4, edgecolors="white", linewidth=1.5)
    for (i, j), value in np.ndenumerate(share):
        if np.isfinite(value):
            ax.text(j + 0.5, i + 0.5, str(texts[i, j]), ha="center", va="center", fontsize=fontsize, color="#222222")
    ax.set_xticks(np.arange(len(columns)) + 0.5, list(columns))
    ax.set_yticks(np.arange(len(rows)) + 0.5, list(rows))
    ax.set_ylim(len(rows), 0)  # the first row on top
    ax.xaxis.tick_top()
    ax.grid(visible=False)
    for side in ("left", "bottom"):
        ax.spines[side].set_visible(False)
    ax.tick_params(length=0, pad=2)


def fallen_grid(ax: Axes, rows: Sequence[str], columns: Sequence[str], collapsed: np.ndarray, dips: np.ndarray) -> None:
    """Runs that had collapsed at their end out of all, and dips of all together: (row, column, seed), NaN: no run."""
    there = np.isfinite(collapsed).sum(-1)
    lost, dipped = np.nansum(collapsed, -1), np.nansum(dips, -1)
    share = np.where(there > 0, lost / np.maximum(there, 1), np.nan)
    texts = np.empty(share.shape, dtype=object)
    for place in np.ndindex(share.shape):
        dip = f", {dipped[place]:.0f}d" if dipped[place] else ""
        texts[place] = f"{lost[place]:.0f}/{there[place]}{dip}"
    count_grid(ax, rows, columns, share, texts)


def bin_words(edges: np.ndarray) -> list[str]:
    """Names of the bins between ascending bounds, the last of which may be infinite."""
    return [f"{low:g}-{high:g}" if np.isfinite(high) else f"≥ {low:g}" for low, high in pairwise(edges)]


def draw_study(
    fig: Figure,
    axes: Sequence[Axes],
    data: Mapping[str, Any],
    xlabel: str,
    *,
    difference: bool = False,
    hollow: np.ndarray | None = None,
) -> None:
    """Final accuracy and area over the settings of a study, with `difference` a third panel: area minus GMC's.

    data: what `study_arrays` returns. The methods' legend stands below the figure.
    """
    styles, settings = styles_of(data["names"]), [str(setting) for setting in data["settings"]]
    for ax, key, title, label in (
        (axes[0], "final", "(a) Final accuracy", ACCURACY),
        (axes[1], "area", "(b) Area under the curve", AREA_SHORT),
    ):
        over_settings(ax, styles, settings, data[key], data[f"{key}_mean"], hollow=hollow)
        ax.set_title(title)
        ax.set(xlabel=xlabel, ylabel=label)
    if difference:
        ax = axes[2]
        others = [k for k, name in enumerate(data["names"]) if str(name) != "gmc"]
        means = data["area_difference_mean"][others]
        over_settings(ax, [styles[k] for k in others], settings, data["area_difference"][others], means, ylim=None)
        gmc = estimator_style("gmc")
        ax.axhline(0, color=gmc.color, linewidth=1.6)
        ax.annotate("GMC", (1, 0), xycoords=("axes fraction", "data"), xytext=(3, 0), textcoords="offset points",
                    va="center", color=gmc.color, fontsize=8.5, annotation_clip=False)  # fmt: skip
        ax.set_title("(c) Area: difference to GMC, same seed")
        ax.set(xlabel=xlabel, ylabel="difference of area under the curve")
    method_legend(fig, axes[:1], ncols=len(styles))


def method_legend(fig: Any, axes: Iterable[Axes], ncols: int) -> None:
    """The methods of the panels, each once, below the panels of the figure (or subfigure)."""
    seen = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            seen.setdefault(label, handle)
    fig.legend(list(seen.values()), list(seen), loc="outside lower center", ncols=ncols)
