"""One style for every figure: one label, colour, line and marker per estimator, and bands that say what they show.

The eight headline estimators carry the Okabe-Ito colours (distinct under the common colour deficiencies); GMC is the
vermilion, thick, solid one. `save_figure` (see `figure_files`) is re-exported so that a figure needs one import.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import matplotlib as mpl
import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from scipy import stats

from gmc_core.reporting.figure_files import DETERMINISTIC_RC, data_hash, load_figure_data, save_figure

__all__ = [
    "ESTIMATOR_STYLE", "HEADLINE", "LineStyle", "apply_style", "band", "data_hash", "estimator_style", "interval_note",
    "load_figure_data", "mean_interval", "save_figure",
]  # fmt: skip


@dataclass(frozen=True)
class LineStyle:
    """How one estimator is drawn everywhere. `line()` gives the keyword arguments of `Axes.plot`."""

    label: str
    color: str
    linestyle: Any
    marker: str
    linewidth: float = 1.6
    zorder: float = 2.5

    def line(self, **changes: Any) -> dict[str, Any]:
        """Keywords for a line with markers; `changes` override (e.g. `marker=None`, `label=None`)."""
        return {
            "label": self.label, "color": self.color, "linestyle": self.linestyle, "marker": self.marker,
            "linewidth": self.linewidth, "zorder": self.zorder, **changes,
        }  # fmt: skip

    def points(self, **changes: Any) -> dict[str, Any]:
        """Keywords for markers without a line."""
        return {**self.line(), "linestyle": "none", **changes}


_DOT, _DASH, _DASHDOT = (0, (1, 1.4)), (0, (5, 2)), (0, (5, 1.5, 1, 1.5))

ESTIMATOR_STYLE: dict[str, LineStyle] = {
    # headline menu
    "gmc": LineStyle("GMC", "#D55E00", "-", "o", linewidth=2.6, zorder=3.5),
    "tic_truncate": LineStyle("TIC, truncate", "#0072B2", _DASH, "s"),
    "tic_mask": LineStyle("TIC, mask", "#56B4E9", _DASHDOT, "X"),
    "snis": LineStyle("self-normalised IS", "#009E73", _DASH, "D"),
    "is": LineStyle("full IS", "#000000", _DOT, "v"),
    "water_filling": LineStyle("water-filling, ours", "#E69F00", _DASHDOT, "P"),
    "ppo_clip": LineStyle("PPO clip (token)", "#CC79A7", "-", "^"),
    "uncorrected": LineStyle("no correction", "#7F7F7F", _DOT, "x"),
    # the rest of the menu
    "gspo": LineStyle("GSPO", "#332288", "-", "<"),
    "topr": LineStyle("TOPR", "#882255", _DASH, ">"),
    "gepo": LineStyle("GEPO", "#999933", _DASHDOT, "h"),
    "seq_mis": LineStyle("sequence MIS", "#44AA99", _DOT, "p"),
    "cispo": LineStyle("CISPO", "#117733", "-", "*"),
    "token_tis": LineStyle("token TIS", "#6A8FD8", _DASH, "d"),
    "icepop": LineStyle("IcePop", "#C9A227", _DOT, "H"),
    "m2po": LineStyle("M2PO", "#661100", _DASHDOT, "8"),
    "vespo": LineStyle("VESPO", "#AA4499", _DASH, "1"),
    "mixture": LineStyle("mixture, ours", "#8C564B", "-", "2"),
}
HEADLINE = ("gmc", "tic_truncate", "tic_mask", "snis", "is", "water_filling", "ppo_clip", "uncorrected")

STYLE_RC: dict[str, Any] = {
    **DETERMINISTIC_RC,
    "figure.constrained_layout.use": True,
    "figure.dpi": 100,
    "figure.facecolor": "white",
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 10,
    "axes.edgecolor": "#444444",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "#E3E3E3",
    "grid.linewidth": 0.7,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "legend.fontsize": 8.5,
    "legend.title_fontsize": 8.5,
    "legend.frameon": False,
    "lines.markersize": 5,
    "lines.markeredgewidth": 1.0,
}


def apply_style() -> None:
    """Set seaborn's white grid with this project's fonts, sizes and colours. Call it before creating a figure."""
    sns.set_theme(context="notebook", style="whitegrid", rc=STYLE_RC)
    mpl.rcParams["axes.prop_cycle"] = mpl.cycler(color=[ESTIMATOR_STYLE[name].color for name in HEADLINE])


def estimator_style(name: str, **changes: Any) -> LineStyle:
    """The style of estimator `name`, optionally changed (`label="GMC, eps 0.1"`). ValueError for an unknown name."""
    if name not in ESTIMATOR_STYLE:
        raise ValueError(f"no style for estimator {name!r}; known: {', '.join(ESTIMATOR_STYLE)}")
    return replace(ESTIMATOR_STYLE[name], **changes)


def mean_interval(samples: Any, axis: int = 0, level: float = 0.95) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Mean and Student-t interval over `axis`: `(mean, low, high, n)`.

    `n` is the size of the axis. With one sample the interval is NaN: nothing is known about its spread.
    """
    values = np.asarray(samples, dtype=float)
    if values.ndim == 0 or values.shape[axis] == 0:
        raise ValueError(f"mean_interval needs at least one sample along axis {axis}; got shape {values.shape}")
    n = values.shape[axis]
    mean = values.mean(axis)
    if n == 1:
        unknown = np.full_like(mean, np.nan)
        return mean, unknown, unknown, n
    half = stats.t.ppf(0.5 + level / 2, n - 1) * values.std(axis, ddof=1) / np.sqrt(n)
    return mean, mean - half, mean + half, n


def interval_note(n: int, unit: str = "seeds", estimate: str = "mean") -> str:
    """`"n = 32 seeds, mean, 95 % interval"`: the sentence each curve or legend title carries."""
    return f"n = {n} {unit}, {estimate}, 95 % interval"


def band(
    ax: Axes, x: Any, samples: Any, style: str | LineStyle, *, unit: str | None = "seeds", markevery: Any = None,
    **line: Any,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Draw the mean of `samples` (n, len(x)) against `x` with its 95 % Student-t band.

    `style` is an estimator name or a `LineStyle`. The label is "GMC (n = 32 seeds, mean, 95 % interval)"; with
    `unit=None` it is the bare name, for a legend whose title says n. With n < 5 every sample is drawn as well.
    Returns what was plotted: `{"mean", "low", "high"}`.
    """
    look = style if isinstance(style, LineStyle) else estimator_style(style)
    values = np.asarray(samples, dtype=float)
    if values.ndim != 2 or values.shape[1] != len(x):
        raise ValueError(f"band needs samples of shape (n, {len(x)}) for {len(x)} x values; got {values.shape}")
    mean, low, high, n = mean_interval(values)
    label = look.label if unit is None else f"{look.label} ({interval_note(n, unit)})"
    if n < 5:
        for row in values:
            ax.plot(x, row, color=look.color, linewidth=0.7, alpha=0.6, zorder=look.zorder - 0.5)
    ax.fill_between(x, low, high, color=look.color, alpha=0.18, linewidth=0, zorder=look.zorder - 1)
    ax.plot(x, mean, **look.line(label=label, markevery=markevery, **line))
    return {"mean": mean, "low": low, "high": high}
