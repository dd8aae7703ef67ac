"""Figure S13: snapshots of a run against its last policy: log ratios, E(M - c)+, bias, and the planner.

One row of panels for each model, and one with the drift and the planner. Lines of predictions are lognormal laws with
the measured KL(pi || b), dashed with the measured variance.
"""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from gmc_core.reporting.figure_style import estimator_style
from gmc_core.reporting.figures.needs import Needs
from gmc_core.reporting.figures.study_panels import headline
from gmc_core.reporting.model_fidelity import drift_table, fitted_drift, gradient_table, law_table
from gmc_core.reporting.profiles import Profile
from gmc_core.reporting.run_records import Runs
from gmc_core.theory.planner import largest_kl

NEEDS = Needs(("model_fidelity", "model_fidelity_smollm2"), until_then=("model_fidelity",))
LABELS = {"model_fidelity": "tiny Qwen3", "model_fidelity_smollm2": "SmolLM2-135M"}
QUANTILES = ("log_mass_05", "log_mass_25", "log_mass_50", "log_mass_75", "log_mass_95")
EPSILON = 0.2
SHOWN = {"gmc": "gmc", "tic_truncate": "tic_truncate", "snis": "snis"}  # in the panel of biases: rule -> style
TARGETS = (0.02, 0.05, 0.1, 0.2)
COLORS = ("#9ECAE1", "#4292C6", "#2166AC", "#08306B")  # of the delays above 0, of the targets likewise
MARKERS = ("o", "s", "D", "^")


def compute(profile: Profile) -> dict[str, Any]:
    """Estimates and predictions of every model whose tables are shown, stacked along the first axis."""
    return figure_data(NEEDS.load(profile))


def figure_data(tables: dict[str, Runs]) -> dict[str, Any]:
    """experiments, labels, runs; delay (positive ones), group_size (from 2), sizes (with 1: single ratios), targets.

    quantiles (model, delay, size, quantile); excess (model, delay, size, 3: mean, low, high), from_kl and from_variance
    (model, delay, size); truncate and mask (model, delay, 3); bias and lost (model, rule, delay, group size, 3), both
    against importance sampling on the same groups; kl (model, delay, 3), half_variance (model, delay); power and at_one
    (model), the fitted power law of the KL and its value at delay 1; largest_delay (model, target, group size).
    """
    parts = [_model_data(found) for found in tables.values()]
    shared = ("delay", "group_size", "sizes")
    for name in shared:
        if any(not np.array_equal(part[name], parts[0][name]) for part in parts):
            raise ValueError(f"the experiments {', '.join(tables)} differ in {name}; they cannot share a figure")
    data = {name: np.stack([part[name] for part in parts]) for name in parts[0] if name not in shared}
    return data | {
        "experiments": list(tables),
        "labels": [LABELS.get(name, name) for name in tables],
        "targets": np.array(TARGETS),
        "rules": list(SHOWN),
        **{name: parts[0][name] for name in shared},
    }


def _model_data(tables: Runs) -> dict[str, np.ndarray]:
    drift, law, gradient = drift_table(tables), law_table(tables), gradient_table(tables)
    delays = [delay for delay in drift.index if delay > 0]
    law = law.xs(EPSILON, level="epsilon")
    sizes = sorted(set(law.index.get_level_values("group_size")))
    groups = [size for size in sizes if size > 1]
    fit = fitted_drift(tables)
    reach = np.array([[largest_kl(target, size, EPSILON) for size in groups] for target in TARGETS])

    def laws(*columns: str) -> np.ndarray:
        return np.array([[law.loc[(delay, size), list(columns)] for size in sizes] for delay in delays], dtype=float)

    def gradients(name: str) -> np.ndarray:
        columns = [name, f"{name}_low", f"{name}_high"]
        return np.array(
            [[[gradient.loc[(d, g, rule), columns] for g in groups] for d in delays] for rule in SHOWN], dtype=float
        )

    return {
        "delay": np.array(delays),
        "group_size": np.array(groups),
        "sizes": np.array(sizes),
        "runs": np.array(len(tables.runs)),
        "quantiles": laws(*QUANTILES),
        "excess": laws("excess_group", "excess_group_low", "excess_group_high"),
        "from_kl": laws("from_kl")[..., 0],
        "from_variance": laws("from_variance")[..., 0],
        "truncate": laws("excess_truncate", "excess_truncate_low", "excess_truncate_high")[:, 0],
        "mask": laws("excess_mask", "excess_mask_low", "excess_mask_high")[:, 0],
        "bias": gradients("paired_bias"),
        "lost": gradients("paired_lost"),
        "kl": drift.loc[delays, ["kl_forward", "kl_forward_low", "kl_forward_high"]].to_numpy(float),
        "half_variance": drift.loc[delays, "half_variance"].to_numpy(float),
        "power": np.array(fit.delay_power, dtype=float),
        "at_one": np.array(fit.at(1)),
        "largest_delay": fit.delay * (reach / fit.kl) ** (1 / fit.delay_power),
    }


def draw(data: dict[str, Any]) -> Figure:
    """The panels from the values of `figure_data`."""
    models = len(data["labels"])
    fig, axes = plt.subplots(models + 1, 4, figsize=(15, 3.7 * (models + 1) + 0.6), squeeze=False)
    letters = iter("abcdefghijklmnopqrst")
    for m in range(models):
        panels = (
            (_draw_ratios, "log r and log M by delay"),
            (_draw_excess, r"$\mathbb{E}(M-c)_+$, measured, predicted"),
            (_draw_bias, "Squared bias of the gradient"),
            (_draw_lost, "Share of the gradient lost"),
        )
        for ax, (panel, title) in zip(axes[m], panels, strict=True):
            panel(ax, data, m)
            ax.set_title(f"({next(letters)}) {title}")
        axes[m, 0].set_ylabel(f"{data['labels'][m]}\n\nnats")
    last = [axes[models, 0], axes[models, 1], *axes[models, 2:]]
    _draw_drift(last[0], data)
    last[0].set_title(f"({next(letters)}) Drift: KL(π ‖ b) of a response")
    _draw_three(last[1], data)
    last[1].set_title(f"({next(letters)}) The three excesses, {data['labels'][0]}")
    for m, ax in zip(range(2), last[2:], strict=True):
        if m < models:
            _draw_planner(ax, data, m)
            ax.set_title(f"({next(letters)}) Planner: {data['labels'][m]}")
        else:
            ax.set_axis_off()
    handles = [
        Line2D([], [], color=color, marker=marker, linestyle="none", label=f"delay {delay}")
        for color, marker, delay in zip(COLORS, MARKERS, data["delay"], strict=False)
    ]
    handles += [
        Line2D([], [], color="#444444", label="lognormal, measured KL"),
        Line2D([], [], color="#444444", linestyle=(0, (2, 2)), linewidth=1, label="lognormal, measured variance"),
    ]
    fig.legend(handles=handles, loc="outside lower center", ncols=6)
    counts = ", ".join(
        f"{label}: n = {int(runs)} run{'s' * (int(runs) != 1)}"
        for label, runs in zip(data["labels"], data["runs"], strict=True)
    )
    headline(fig, (
        f"c = 1 + {EPSILON:g}", counts,
        "bars: 95 % interval, over prompts, or over runs where that is wider",
    ), (
        "bias and loss: against uncapped importance sampling on the same groups",
        "planner: delay up to which the predicted E(M - c)+ stays below the number at the line",
    ))  # fmt: skip
    return fig


def _bars(ax: Axes, x: np.ndarray, ends: np.ndarray, **style: Any) -> None:
    """Points with the interval (n, 3: mean, low, high) as a bar; a mean may lie at 0."""
    below, above = (np.maximum(part, 0) for part in (ends[:, 0] - ends[:, 1], ends[:, 2] - ends[:, 0]))
    ax.errorbar(x, ends[:, 0], yerr=[below, above], elinewidth=0.9, capsize=2, **style)


def _sizes_axis(ax: Axes, sizes: np.ndarray) -> None:
    ax.set_xscale("log", base=2)
    ax.set_xticks(sizes, [str(size) for size in sizes])
    ax.set_xlim(sizes[0] / 1.3, sizes[-1] * 1.3)
    ax.minorticks_off()
    ax.set_xlabel("rollouts per prompt, G")


def _draw_ratios(ax: Axes, data: dict[str, Any], m: int) -> None:
    """Quantiles 5, 25, 50, 75, 95 % of log r (G = 1) and of log M at the smallest, a middle and the largest G."""
    sizes = list(data["sizes"])
    shown = [size for size in (1, 4, 16, 64) if size in sizes] or sizes
    for d, _ in enumerate(data["delay"]):
        for k, size in enumerate(shown):
            low, lower, middle, upper, high = data["quantiles"][m, d, sizes.index(size)]
            x = d + 0.19 * (k - (len(shown) - 1) / 2)
            ax.plot([x, x], [low, high], color=COLORS[d], linewidth=1)
            ax.plot([x, x], [lower, upper], color=COLORS[d], linewidth=4, solid_capstyle="butt")
            ax.plot([x], [middle], marker="_", color="white", markersize=5, markeredgewidth=1.2)
    ax.axhline(np.log1p(EPSILON), color="#D55E00", linewidth=0.9, linestyle="--")
    ax.set_yscale("symlog", linthresh=0.5, linscale=1.2)
    ax.set_yticks([-4, -2, -1, -0.5, 0, 0.5, 1, 2], ["-4", "-2", "-1", "-.5", "0", ".5", "1", "2"])
    ax.set_xticks(range(len(data["delay"])), [str(delay) for delay in data["delay"]])
    ax.set_xlabel(f"delay; bars: G = {', '.join(str(size) for size in shown)}")
    ax.grid(visible=False, axis="x")


def _draw_excess(ax: Axes, data: dict[str, Any], m: int) -> None:
    for d, _ in enumerate(data["delay"]):
        _bars(ax, data["sizes"], data["excess"][m, d], color=COLORS[d], marker=MARKERS[d], linestyle="none")
        ax.plot(data["sizes"], data["from_kl"][m, d], color=COLORS[d], linewidth=1.3)
        ax.plot(data["sizes"], data["from_variance"][m, d], color=COLORS[d], linewidth=1, linestyle=(0, (2, 2)))
    _sizes_axis(ax, data["sizes"])
    ax.set_yscale("symlog", linthresh=1e-3, linscale=0.5)
    ax.set_ylim(-2e-4, 1)
    ax.set_ylabel("share of the mass (linear within .001)")


def _draw_bias(ax: Axes, data: dict[str, Any], m: int) -> None:
    """At the two largest delays: the larger one filled."""
    for d in (-2, -1):
        for k, rule in enumerate(data["rules"]):
            style = estimator_style(SHOWN[str(rule)])
            x = data["group_size"] * 1.06 ** (k - 1 + 0.4 * (d == -1))
            fill = {} if d == -1 else {"markerfacecolor": "white"}
            _bars(ax, x, data["bias"][m, k, d], color=style.color, marker=style.marker, linestyle="-", linewidth=1,
                  markersize=4.5, label=style.label if d == -1 else None, **fill)  # fmt: skip
    ax.axhline(1, color="#999999", linewidth=0.8, linestyle="--")
    _sizes_axis(ax, data["group_size"])
    ax.set_yscale("symlog", linthresh=1e-3, linscale=0.5)
    ax.set_ylabel(r"$|m - m_{IS}|^2 / |m^*|^2$ (linear within .001)")
    filled, hollow = data["delay"][-1], data["delay"][-2]
    ax.legend(title=f"filled: delay {filled}, open: {hollow}", fontsize=7.5, title_fontsize=7.5, loc="best")


def _draw_lost(ax: Axes, data: dict[str, Any], m: int) -> None:
    """GMC: the measured loss against E(M - c)+, one point for each delay and group size."""
    gmc = list(data["rules"]).index("gmc")
    sizes = [list(data["sizes"]).index(size) for size in data["group_size"]]
    most = 0.05
    for d, _ in enumerate(data["delay"]):
        x = data["excess"][m, d, sizes, 0]
        _bars(ax, x, data["lost"][m, gmc, d], color=COLORS[d], marker=MARKERS[d], linestyle="none", markersize=4.5)
        most = max(most, float(x.max()) * 1.15)
    ax.plot([0, most], [0, most], color="#999999", linewidth=0.9, linestyle="--")
    ax.set_xlim(-0.02 * most, most)
    ax.set(xlabel=r"measured $\mathbb{E}(M-c)_+$ of GMC", ylabel=r"$\langle m_{IS} - m, m^* \rangle / |m^*|^2$")


def _draw_drift(ax: Axes, data: dict[str, Any]) -> None:
    for m, label in enumerate(data["labels"]):
        color, marker = ("#08306B", "#D55E00")[m % 2], MARKERS[m]
        _bars(ax, data["delay"], data["kl"][m], color=color, marker=marker, linestyle="none", label=str(label))
        ax.plot(data["delay"], data["half_variance"][m], color=color, marker=marker, markerfacecolor="white",
                linestyle="none", markersize=4, alpha=0.8)  # fmt: skip
        k = np.array([data["delay"][0], data["delay"][-1]], dtype=float)
        power = data["power"][m]
        ax.plot(k, data["at_one"][m] * k**power, color=color, linewidth=1, label=f"fit: power {power:.2f}")
    ax.set(xscale="log", yscale="log", xlabel="delay (updates)", ylabel="nats (open: half the variance of log r)")
    ax.set_xticks(data["delay"], [str(delay) for delay in data["delay"]])
    ax.minorticks_off()
    ax.legend(fontsize=7.5)


def _draw_three(ax: Axes, data: dict[str, Any]) -> None:
    """Excesses of the first model over the delays: the group's at three sizes, truncation, masking."""
    sizes = list(data["sizes"])
    for size, line in ((4, ":"), (16, "-"), (64, "--")):
        if size in sizes:
            values = data["excess"][0, :, sizes.index(size)]
            _bars(ax, data["delay"], values, color=estimator_style("gmc").color, marker="o", linestyle=line,
                  markersize=4, label=f"GMC, G = {size}")  # fmt: skip
    for name, key in (("tic_truncate", "truncate"), ("tic_mask", "mask")):
        style = estimator_style(name)
        _bars(ax, data["delay"], data[key][0], color=style.color, marker=style.marker, markersize=4, linestyle="-",
              label=style.label)  # fmt: skip
    ax.set_xscale("log", base=2)
    ax.set_xticks(data["delay"], [str(delay) for delay in data["delay"]])
    ax.minorticks_off()
    ax.set_yscale("symlog", linthresh=1e-3, linscale=0.5)
    ax.set_ylim(-2e-4, 1)
    ax.set(xlabel="delay (updates)", ylabel="share of the mass (linear within .001)")
    ax.legend(fontsize=7.5)


def _draw_planner(ax: Axes, data: dict[str, Any], m: int) -> None:
    """Largest delay against G for every target; the shaded delays are longer than any that was measured."""
    for k, target in enumerate(data["targets"]):
        ax.plot(data["group_size"], data["largest_delay"][m, k], color=COLORS[k], marker=".", linewidth=1.5)
        ax.annotate(f"{target:g}", (data["group_size"][-1], data["largest_delay"][m, k, -1]), xytext=(5, 0),
                    textcoords="offset points", va="center", fontsize=8, color=COLORS[k])  # fmt: skip
    _sizes_axis(ax, data["group_size"])
    ax.set_xlim(data["group_size"][0] / 1.3, data["group_size"][-1] * 2)
    ax.set_yscale("log", base=2)
    low, high = ax.get_ylim()
    ticks = 2.0 ** np.arange(np.ceil(np.log2(low)), np.floor(np.log2(high)) + 1)
    ax.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    if high > data["delay"][-1]:
        ax.axhspan(data["delay"][-1], high, color="#F1F1F1", zorder=0, linewidth=0)
    ax.set_ylim(low, high)
    ax.set_ylabel("largest delay (updates)\ngrey: beyond what was measured")
