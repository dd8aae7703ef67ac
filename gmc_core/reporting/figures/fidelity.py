"""Figure S10: how true to the fresh gradient each rule is on the same stale rollouts: bias, direction, variance.

Probes along runs driven by GMC and by truncation (`gmc_core.training.fidelity`). Squares are relative to the squared
norm of the fresh gradient; a relative squared bias of 1 is that of the zero gradient. The square differs thousandfold
between probes (next to a cliff it is large, at a solved task or in a dead zone nothing), so probes are summarised by
their median, and only those count whose fresh gradient stands out from its noise (`RESOLVED`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.scale import SymmetricalLogScale
from matplotlib.ticker import NullLocator

from gmc_core.reporting.figure_style import LineStyle, estimator_style
from gmc_core.reporting.figures.needs import Needs
from gmc_core.reporting.figures.study_panels import headline, method_legend, note_rows
from gmc_core.reporting.profiles import Profile
from gmc_core.reporting.run_comparisons import in_order
from gmc_core.reporting.run_records import Runs

if TYPE_CHECKING:
    import pandas as pd

NEEDS = Needs(("fidelity",))
RESOLVED = 2.0  # a probe counts if its fresh squared norm is this many of its standard errors
MIDDLE = 16  # group size of the upper panels: that of the main comparison
BIAS_LIMITS = (-2.0, 30.0)  # of the drawing; points beyond stand at its edge
SQUARES = {"bias": "bias_squared", "variance": "variance"}
COSINES = {"cosine": "cosine", "update_cosine": "update_cosine"}
MEASURES = {  # title, label of the axis
    "bias": ("Relative squared bias", r"$|m - m^*|^2 / |m^*|^2$"),
    "cosine": ("Cosine of the mean", r"cosine of $m$ and $m^*$"),
    "variance": ("Relative variance", r"variance of an update / $|m^*|^2$"),
    "update_cosine": ("Cosine of an update", r"mean cosine of $g$ and $m^*$"),
}


def compute(profile: Profile) -> dict[str, Any]:
    """Relative squared bias and variance, and cosines, by rule, delay, group size and probe."""
    return figure_data(NEEDS.load(profile)["fidelity"])


def figure_data(tables: Runs) -> dict[str, Any]:
    """bias, variance, cosine, update_cosine as (rule, delay, group size, probe), NaN where a probe is not resolved.

    A probe is an update of a run, in the order of `driver`, `seed` and `update` (each (probe,)). `<name>_median` holds
    the median and the quartiles over the probes that are there, (rule, delay, group size, 3); `resolved` their number,
    (delay, group size).
    """
    rows = tables.probes.merge(
        tables.runs[["run_id", "delay", "seed", "estimator"]]
        .rename(columns={"estimator": "driver"})
        .astype({"run_id": str}),
        on="run_id",
        validate="many_to_one",
    )
    rules, delays, sizes = in_order(rows["estimator"]), sorted(set(rows["delay"])), sorted(set(rows["group_size"]))
    probes = sorted(set(zip(rows["driver"], rows["seed"], rows["update"], strict=True)))
    rows = rows.assign(probe=list(zip(rows["driver"], rows["seed"], rows["update"], strict=True)))
    shape = [rules, delays, sizes, probes]
    fresh, error = (_cells(rows, name, shape) for name in ("fresh_norm_squared", "fresh_norm_squared_error"))
    resolved = fresh > RESOLVED * error
    driver, seed, update = zip(*probes, strict=True)
    data: dict[str, Any] = {
        "experiment": tables.name,
        "rules": rules,
        "delay": np.array(delays),
        "group_size": np.array(sizes),
        "driver": list(driver),
        "seed": np.array(seed),
        "update": np.array(update),
        "runs": len(set(zip(driver, seed, strict=True))),
        "threshold": RESOLVED,
        "resolved": resolved[0].sum(-1),  # the fresh gradient is the same for every rule
    }
    for name, column in (SQUARES | COSINES).items():
        values = _cells(rows, column, shape)
        scale = np.where(resolved, fresh, np.nan)
        data[name] = values / scale if name in SQUARES else np.where(resolved, values, np.nan)
        data[f"{name}_median"] = np.moveaxis(np.nanquantile(data[name], (0.5, 0.25, 0.75), axis=-1), 0, -1)
    return data


def _cells(rows: pd.DataFrame, column: str, shape: list) -> np.ndarray:
    import pandas as pd

    index = pd.MultiIndex.from_product(shape)
    values = rows.set_index(["estimator", "delay", "group_size", "probe"])[column].reindex(index).to_numpy(dtype=float)
    return values.reshape([len(part) for part in shape])


def rule_style(rule: str) -> LineStyle:
    """The style of a rule of the probes; variants carry the colour of their shape and a thin line."""
    name, _, mean = rule.partition(" at the mean of ")
    if mean:
        base = estimator_style(name)
        return estimator_style(name, label=f"{base.label}, mean of {estimator_style(mean).label}", linestyle="-",
                               marker="$m$", linewidth=1.0)  # fmt: skip
    if rule.endswith("(cap not detached)"):
        return estimator_style(
            "gmc", label="GMC, cap not detached", linestyle=(0, (1, 1.4)), marker="$d$", linewidth=1.4
        )
    return estimator_style(rule)


def draw(data: dict[str, Any]) -> Figure:
    """A row of panels per delay, every probe a point, and a row over group sizes at the largest delay."""
    styles = [rule_style(str(rule)) for rule in data["rules"]]
    delays, sizes = data["delay"], data["group_size"]
    middle = int(np.flatnonzero(sizes == MIDDLE)[0]) if MIDDLE in sizes else len(sizes) // 2
    rows = len(delays) + 1
    fig, axes = plt.subplots(
        rows, len(MEASURES), figsize=(14.5, 4.3 * len(delays) + 3.2), squeeze=False,
        height_ratios=[1.35] * len(delays) + [1],
    )  # fmt: skip
    letters = iter("abcdefghijklmnop")
    for row, delay in enumerate(delays):
        early = data["update"] <= delay
        for ax, (name, (title, label)) in zip(axes[row], MEASURES.items(), strict=True):
            _draw_probes(ax, styles, data[name][:, row, middle], data[f"{name}_median"][:, row, middle], early, name)
            _scale(ax, name, "x")
            ax.set_title(f"({next(letters)}) {title}, delay {delay}", fontsize=9.5)
            ax.set_xlabel(f"{label}, {int(data['resolved'][row, middle])} probes", fontsize=8.5)
            if ax is not axes[row, 0]:
                ax.set_yticklabels([])
    for ax, (name, (title, label)) in zip(axes[-1], MEASURES.items(), strict=True):
        for k, style in enumerate(styles):
            ax.plot(np.arange(len(sizes)), data[f"{name}_median"][k, -1, :, 0], **style.line(markersize=4.5))
        _scale(ax, name, "y")
        ax.set_xticks(range(len(sizes)), [str(size) for size in sizes])
        ax.set_title(f"({next(letters)}) {title}, delay {delays[-1]}", fontsize=9.5)
        ax.set_ylabel(f"{label}, median", fontsize=8.5)
        ax.set_xlabel("rollouts per prompt, G")
    method_legend(fig, axes[-1, :1], ncols=7)
    drivers = " and ".join(estimator_style(str(name)).label for name in dict.fromkeys(data["driver"]))
    headline(fig, (
        f"Probes along {int(data['runs'])} runs a delay, driven by {drivers}",
        f"upper rows: G = {sizes[middle]}, number and bar: median and quartiles",
        "open: rollouts still come from the initial policy",
    ), (
        "g, m: gradient of a rule on stale rollouts and its mean; m*: mean gradient of the same update with fresh ones",
    ), (
        f"only probes with $|m^*|^2$ above {float(data['threshold']):g} standard errors",
        "dashed: the zero gradient",
        "a bias beyond the panel stands at its edge",
    ))  # fmt: skip
    return fig


def _draw_probes(
    ax: Axes, styles: list[LineStyle], values: np.ndarray, medians: np.ndarray, early: np.ndarray, name: str
) -> None:
    """A row per rule: values (rule, probe), medians (rule, 3); open points where `early`."""
    last = len(styles) - 1
    for row, (style, probes, (median, low, high)) in enumerate(zip(styles, values, medians, strict=True)):
        y = last - row
        for part, face in ((early, "white"), (~early, style.color)):
            shown = np.clip(probes[part], *BIAS_LIMITS) if name == "bias" else probes[part]
            ax.plot(shown, np.full(int(part.sum()), y), linestyle="none", marker="o", markersize=3.2,
                    color=style.color, markerfacecolor=face, markeredgewidth=0.7, alpha=0.6)  # fmt: skip
        ax.hlines(y - 0.28, low, high, color=style.color, linewidth=1.6)
        ax.plot([median], [y - 0.28], marker="|", markersize=7, color=style.color, markeredgewidth=2)
    note_rows(ax, [f"{median:.2f}" for median in medians[:, 0]])
    ax.set_yticks(range(last + 1), [style.label for style in reversed(styles)])
    ax.set_ylim(-0.7, last + 0.6)


def _scale(ax: Axes, name: str, axis: str) -> None:
    """The axis of a measure, "x" or "y", with a dashed line where the zero gradient is."""
    along = ax.xaxis if axis == "x" else ax.yaxis
    line = ax.axvline if axis == "x" else ax.axhline
    if name == "bias":
        ax.set(**{f"{axis}scale": SymmetricalLogScale(along, linthresh=0.1, linscale=0.8)})
        if axis == "x":
            ax.set_xlim(*BIAS_LIMITS)
        along.set_ticks([-1, -0.1, 0, 0.1, 1, 10] if axis == "x" else [0, 0.1, 1], minor=False)
        along.set_major_formatter("{x:g}")
        along.set_minor_locator(NullLocator())
    elif name == "variance":
        ax.set(**{f"{axis}scale": "log"})
        return
    else:
        ax.set(**{f"{axis}lim": (-1.15, 1.35) if axis == "x" else (-0.25, 1.15)})
    line(float(name == "bias"), color="#555555", linewidth=0.9, linestyle="--", zorder=1)
