"""One run by two trainers (notebook 09): how far their weights are apart, and the accuracy of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from gmc_core.reporting.figure_style import estimator_style

Rows = Sequence[Mapping[str, float]]


def draw(runs: Mapping[str, tuple[Rows, Rows]], *, other: str) -> Figure:
    """`runs`: estimator -> (rows per update with `difference` and `change`, rows per evaluation with `accuracy` and
    `accuracy_trl`); `other`: the name of the trainer beside `gmc_core.train`. One seed each: the two must agree."""
    fig, (left, right) = plt.subplots(1, 2, figsize=(10.5, 3.9))
    for name, (updates, evaluations) in runs.items():
        style = estimator_style(name)
        x = _column(updates, "update")
        change = _column(updates, "change")
        change[change == 0] = np.nan  # an update without any advantage; 0 has no place on a logarithmic axis
        left.plot(x, change, **style.line(marker=None, alpha=0.55, label=f"{style.label}: change"))
        apart = np.maximum(_column(updates, "difference"), 1e-10)
        left.plot(x, apart, **style.points(markersize=3.5, label=f"{style.label}: difference"))
        x = _column(evaluations, "update")
        right.plot(x, _column(evaluations, "accuracy"), **style.line(marker=None, label=f"{style.label}, gmc_core"))
        right.plot(
            x,
            _column(evaluations, "accuracy_trl"),
            **style.points(markersize=8, markerfacecolor="none", marker="o", label=f"{style.label}, {other}"),
        )
    left.set(yscale="log", xlabel="update", ylabel="largest over the weights")
    left.set_title(f"(a) Weights of gmc_core and {other}")
    left.legend(title="change by an update; difference after it")
    right.set(xlabel="update", ylabel="accuracy", ylim=(0, 1))
    right.set_title("(b) Accuracy of both")
    right.legend(title="n = 1 seed each, the same one: a check, not a comparison", loc="upper left")
    return fig


def _column(rows: Rows, name: str) -> Any:
    return np.array([row[name] for row in rows], dtype=float)
