"""Names written at the ends of lines, moved apart where lines end close together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes


def spread(wanted: Any, gap: float, low: float, high: float) -> np.ndarray:
    """Positions near `wanted`, at least `gap` apart, inside [low, high] (evenly spaced if they cannot all fit).

    Order is kept. Neighbours that are too close share the shift: a cluster is centred on the mean of what it wanted.
    """
    values = np.asarray(wanted, dtype=float)
    if len(values) * gap > (high - low) + gap:
        gap = (high - low) / max(len(values) - 1, 1)
    order = np.argsort(values, kind="stable")
    clusters: list[tuple[float, int]] = []  # (centre, members), from below
    for value in values[order]:
        centre, members = float(value), 1
        while True:
            reach = (members - 1) * gap / 2
            centre = min(max(centre, low + reach), high - reach)
            if not clusters or clusters[-1][0] + (clusters[-1][1] - 1) * gap / 2 + gap <= centre - reach + 1e-12:
                break
            below, count = clusters.pop()
            centre = (below * count + centre * members) / (count + members)
            members += count
        clusters.append((centre, members))
    placed = np.concatenate([centre + gap * (np.arange(members) - (members - 1) / 2) for centre, members in clusters])
    result = np.empty_like(values)
    result[order] = placed
    return result


def label_ends(
    ax: Axes, x: float, ends: Any, labels: Sequence[str], colors: Sequence[str], *, fontsize: float = 8.5
) -> None:
    """Write `labels` right of `x` in their lines' colours, each tied to its line's end by a thin leader.

    Call it when the limits of the y axis are final: the gap between labels is a share of them.
    """
    low, high = ax.get_ylim()
    height = ax.bbox.height / ax.get_figure(root=True).dpi  # inches; a layout engine changes them little
    gap = (high - low) * 1.3 * fontsize / 72 / height
    for end, place, label, color in zip(ends, spread(ends, gap, low, high), labels, colors, strict=True):
        ax.annotate(
            label, (x, end), xytext=(16, place), textcoords=("offset points", "data"), color=color, fontsize=fontsize,
            va="center", annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": color, "linewidth": 0.6, "alpha": 0.7, "shrinkA": 1, "shrinkB": 4},
        )  # fmt: skip
