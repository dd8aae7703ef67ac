"""Figure S10: how true to the fresh gradient each rule is on the same stale rollouts: bias, direction, variance.

Probes along runs driven by GMC and by truncation (`gmc_core.training.fidelity`). Squares are relative to the squared
norm of the fresh gradient, as ratios of sums over the runs; a relative squared bias of 1 is that of the zero gradient.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gmc_core.reporting.figure_style import LineStyle, estimator_style
from gmc_core.reporting.figures.needs import Needs
from gmc_core.reporting.figures.study_panels import headline
from gmc_core.reporting.profiles import Profile
from gmc_core.reporting.run_comparisons import in_order
from gmc_core.reporting.run_records import Runs

if TYPE_CHECKING:
    import pandas as pd

NEEDS = Needs(("fidelity",))
SQUARES = {"bias": "bias_squared", "variance": "variance"}
COSINES = {"cosine": "cosine", "update_cosine": "update_cosine"}
MIDDLE = 16  # group size of the panels over updates: that of the main comparison


def compute(profile: Profile) -> dict[str, Any]:
    """Relative squared bias and variance, and cosines, by rule, delay, group size and update."""
    return figure_data(NEEDS.load(profile)["fidelity"])


def figure_data(tables: Runs) -> dict[str, Any]:
    """bias, variance, cosine, update_cosine as (rule, delay, group size, update), over all runs; `<name>_runs` the same
    of every run (last axis), NaN for a square where the run's fresh gradient is not above its standard error.

    `sizes_<name>`: (rule, delay, group size), all updates together. `seeds`: runs a delay.
    """
    rows = tables.probes.merge(
        tables.runs[["run_id", "delay", "seed", "estimator"]]
        .rename(columns={"estimator": "driver"})
        .astype({"run_id": str}),
        on="run_id",
        validate="many_to_one",
    )
    rules, delays = in_order(rows["estimator"]), sorted(set(rows["delay"]))
    sizes, updates = sorted(set(rows["group_size"])), sorted(set(rows["update"]))
    runs = sorted(set(zip(rows["driver"], rows["seed"], strict=True)))
    shape = [rules, delays, sizes, updates, runs]
    rows = rows.assign(run=list(zip(rows["driver"], rows["seed"], strict=True)))
    data: dict[str, Any] = {
        "experiment": tables.name,
        "rules": rules,
        "delay": np.array(delays),
        "group_size": np.array(sizes),
        "update": np.array(updates),
        "drivers": in_order(rows["driver"]),
        "runs": len(runs),
    }
    fresh, error = (_cells(rows, name, shape) for name in ("fresh_norm_squared", "fresh_norm_squared_error"))
    seen = fresh > error
    for name, column in SQUARES.items():
        values = _cells(rows, column, shape)
        data[name] = _ratio(values, fresh, axis=-1)
        data[f"sizes_{name}"] = _ratio(values, fresh, axis=(-2, -1))
        with np.errstate(invalid="ignore", divide="ignore"):
            data[f"{name}_runs"] = np.where(seen, values / fresh, np.nan)
    for name, column in COSINES.items():
        values = np.where(seen, _cells(rows, column, shape), np.nan)
        data[f"{name}_runs"] = values
        data[name], data[f"sizes_{name}"] = _mean(values, axis=-1), _mean(values, axis=(-2, -1))
    return data


def _cells(rows: pd.DataFrame, column: str, shape: list) -> np.ndarray:
    keys = ["estimator", "delay", "group_size", "update", "run"]
    index = _product(shape)
    values = rows.set_index(keys)[column].reindex(index).to_numpy(dtype=float)
    return values.reshape([len(part) for part in shape])


def _product(shape: list) -> Any:
    import pandas as pd

    return pd.MultiIndex.from_product(shape)


def _ratio(values: np.ndarray, fresh: np.ndarray, axis: Any) -> np.ndarray:
    """Sum over `axis` of values by that of the fresh squared norms, over cells that hold both; NaN if not positive."""
    there = np.isfinite(values) & np.isfinite(fresh)
    top, bottom = (np.where(there, part, 0.0).sum(axis) for part in (values, fresh))
    return np.where(bottom > 0, top / np.where(bottom > 0, bottom, 1.0), np.nan)


def _mean(values: np.ndarray, axis: Any) -> np.ndarray:
    count = np.isfinite(values).sum(axis)
    return np.where(count > 0, np.nansum(values, axis) / np.maximum(count, 1), np.nan)


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
    """A row per delay over the updates, and a row over group sizes at the largest delay."""
    styles = [rule_style(str(rule)) for rule in data["rules"]]
    delays, sizes = data["delay"], data["group_size"]
    middle = int(np.flatnonzero(sizes == MIDDLE)[0]) if MIDDLE in sizes else len(sizes) // 2
    fig, axes = plt.subplots(len(delays) + 1, 3, figsize=(13, 3.7 * (len(delays) + 1)), squeeze=False)
    panels = (("bias", "Relative squared bias"), ("cosine", "Direction: cosine"), ("variance", "Relative variance"))
    letters = iter("abcdefghijklmnop")
    for row, delay in enumerate(delays):
        for ax, (name, title) in zip(axes[row], panels, strict=True):
            _draw_lines(
                ax, styles, data["update"], data[name][:, row, middle], data[f"{name}_runs"][:, row, middle], name
            )
            if 0 < delay <= data["update"][-1]:
                ax.axvspan(0, delay, color="#F1F1F1", zorder=0, linewidth=0)
            ax.set_xlim(0, data["update"][-1] * 1.03)
            ax.set_title(f"({next(letters)}) {title}, delay {delay}, G = {sizes[middle]}")
            ax.set_xlabel("update")
    for ax, (name, title) in zip(axes[-1], panels, strict=True):
        _draw_lines(ax, styles, np.arange(len(sizes)), data[f"sizes_{name}"][:, -1], None, name)
        ax.set_xticks(range(len(sizes)), [str(size) for size in sizes])
        ax.set_title(f"({next(letters)}) {title}, delay {delays[-1]}, all probes")
        ax.set_xlabel("rollouts per prompt, G")
    fig.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
    drivers = " and ".join(estimator_style(str(name)).label for name in data["drivers"])
    headline(fig, (
        f"Along {int(data['runs'])} runs a delay, driven by {drivers} (points: single runs, line: all of them)",
        "grey: rollouts still come from the initial policy",
    ), (
        "m: mean gradient of a rule on stale rollouts, m*: that of the same update with fresh ones",
        "dashed: the zero gradient",
    ))  # fmt: skip
    return fig


def _draw_lines(
    ax: Axes, styles: list, x: np.ndarray, values: np.ndarray, single: np.ndarray | None, name: str
) -> None:
    for k, style in enumerate(styles):
        if single is not None:
            points = style.points(label=None, marker="o", markersize=2.5, alpha=0.35, markeredgewidth=0)
            ax.plot(np.repeat(x, single.shape[-1]), single[k].ravel(), **points)
        ax.plot(x, values[k], **style.line(markersize=4.5))
    if name == "cosine":
        ax.set(ylim=(-0.25, 1.05), ylabel=r"$\langle m, m^* \rangle / |m||m^*|$ (1)")
    elif name == "bias":
        ax.set_yscale("symlog", linthresh=0.1, linscale=0.6)
        ax.set_ylabel(r"$|m - m^*|^2 / |m^*|^2$ (1, linear within 0.1)")
        ax.axhline(1, color="#999999", linewidth=0.8, linestyle="--")
    else:
        ax.set_yscale("log")
        ax.set_ylabel(r"variance of an update / $|m^*|^2$ (1)")
