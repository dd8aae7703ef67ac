"""Companion of figure 3: bias beside its bound, second moment, and the mean squared error of a batch of prompts.

(a), (b) bias with its bound, and variance, against the divergence; (c) mean squared error against the number of prompts
per batch; (d) the number of prompts above which GMC has a smaller error than truncation. (a) to (c) are exact, for the
autoregressive pair of figure 3; (d) adds long sequences by simulation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gmc_core.estimators import gmc_weights, self_normalized_weights, tic_weights, water_filling_weights
from gmc_core.estimators.exact_moments import mse_crossover
from gmc_core.reporting.figure_style import LineStyle, band, estimator_style, interval_note
from gmc_core.reporting.figures.bias import EPSILON, PAIR_SEED
from gmc_core.reporting.profiles import Profile
from gmc_core.theory.policy_pairs import stale_pair
from gmc_core.theory.ratio_laws import LognormalRatio
from gmc_core.theory.signal_model import signal_moments

GROUP_SIZE = 8
RULES = ("gmc", "water_filling", "snis", "tic_truncate", "tic_mask", "is", "uncorrected")
BOUNDED = ("gmc", "tic_truncate", "tic_mask")
BATCH_KL = 0.5
CROSSOVER_SIZES = (4, 8, 16)
SIGNAL_BATCHES = 8
_SIZE_SHADES = ("#F4B184", "#D55E00", "#8A3D00")


def compute(profile: Profile) -> dict[str, Any]:
    """Every plotted value; see the module docstring for the panels."""
    kls = np.geomspace(0.01, 1.2, profile.choose(smoke=3, cpu=13))
    data: dict[str, Any] = {"kl": kls, "group_size": GROUP_SIZE, "batch_kl": BATCH_KL}
    pairs = [stale_pair(float(kl), torch.Generator().manual_seed(PAIR_SEED)) for kl in kls]
    for name in RULES:
        found = [pair.moments(name, GROUP_SIZE) for pair in pairs]
        data[f"bias_{name}"] = np.array([m.bias for m in found])
        data[f"variance_{name}"] = np.array([m.variance for m in found])
        data[f"bound_{name}"] = np.array([m.ratio_bound for m in found])

    prompts = np.geomspace(1, 1024, 41)
    data["prompts"] = prompts
    pair = stale_pair(BATCH_KL, torch.Generator().manual_seed(PAIR_SEED))
    data["squared_gradient"] = float(pair.current.gradient(pair.reward).square().sum())
    for name in RULES:
        moments = pair.moments(name, GROUP_SIZE)
        data[f"mse_{name}"] = np.array([moments.mse(float(n)) for n in prompts])

    for G in CROSSOVER_SIZES:
        both = [[p.moments(name, G) for name in ("gmc", "tic_truncate")] for p in pairs]
        data[f"crossover_{G}"] = np.array(
            [mse_crossover((g.bias**2, t.bias**2), (g.variance, t.variance)) for g, t in both]
        )
    data["signal_samples"] = samples = profile.choose(smoke=500, cpu=10_000)
    generator = np.random.default_rng(0)
    data["signal_crossover"] = np.array(  # (batches, KL): the spread of the batches gives the interval
        [[signal_crossover(float(kl), samples, generator) for kl in kls] for _ in range(SIGNAL_BATCHES)]
    )
    return data


def signal_rules() -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    """Weights as functions of the log-ratios of whole groups (n, G), for `signal_moments`."""
    return {
        "is": torch.exp,
        "snis": self_normalized_weights,
        "gmc": lambda log_ratio: gmc_weights(log_ratio, EPSILON),
        "water_filling": lambda log_ratio: water_filling_weights(log_ratio, EPSILON),
        "tic_truncate": lambda log_ratio: tic_weights(log_ratio, EPSILON, variant="truncate"),
        "tic_mask": lambda log_ratio: tic_weights(log_ratio, EPSILON, variant="mask"),
    }


def signal_crossover(kl: float, samples: int, generator: np.random.Generator) -> float:
    """`mse_crossover` of GMC against truncation for lognormal ratios and an independent signal (`signal_model`)."""
    law = LognormalRatio.from_kl(kl)
    rules = signal_rules()
    gmc, truncate = (
        signal_moments(law, rules[name], GROUP_SIZE, samples=samples, generator=generator)
        for name in ("gmc", "tic_truncate")
    )
    return mse_crossover((gmc.squared_bias, truncate.squared_bias), (gmc.variance, truncate.variance))


def draw(data: dict[str, Any]) -> Figure:
    """Four panels from the values of `compute`."""
    fig, axes = plt.subplots(2, 2, figsize=(11.5, 8.6))
    _draw_bias(axes[0, 0], data)
    _draw_variance(axes[0, 1], data)
    _draw_mse(axes[1, 0], data)
    _draw_crossover(axes[1, 1], data)
    return fig


def _draw_bias(ax: Axes, data: dict[str, Any]) -> None:
    for name in RULES:
        if name == "is":
            continue  # exactly 0
        style = estimator_style(name)
        drawn = data[f"bias_{name}"] > 1e-7  # below: no group reaches the cap, and a logarithm needs a number
        ax.plot(data["kl"][drawn], data[f"bias_{name}"][drawn], **style.line())
        if name in BOUNDED:
            drawn = data[f"bound_{name}"] > 1e-7
            ax.plot(data["kl"][drawn], data[f"bound_{name}"][drawn], color=style.color, linewidth=0.9, alpha=0.8)
    ax.plot([], [], color="#555555", linewidth=0.9, label=r"bound $AS\,E\,D(w)$ (full IS: 0)")
    ax.set(xscale="log", yscale="log", ylim=(1e-5, 2), xlabel="KL(current || behaviour), nats")
    ax.set_ylabel(r"$\|E g - \nabla J\|$")
    ax.set_title(f"(a) Bias and its bound, G = {int(data['group_size'])} (exact)")
    ax.legend(loc="lower right")


def _draw_variance(ax: Axes, data: dict[str, Any]) -> None:
    for name in RULES:
        ax.plot(data["kl"], data[f"variance_{name}"], **estimator_style(name).line())
    ax.set(xscale="log", yscale="log", xlabel="KL(current || behaviour), nats")
    ax.set_ylabel(r"$E\|g - E g\|^2$ of one group")
    ax.set_title(f"(b) Variance, G = {int(data['group_size'])} (exact)")
    ax.legend(loc="center left", bbox_to_anchor=(0.0, 0.42), ncols=3, columnspacing=0.9)


def _draw_mse(ax: Axes, data: dict[str, Any]) -> None:
    for name in RULES:
        ax.plot(data["prompts"], data[f"mse_{name}"], **estimator_style(name).line(markevery=8))
    ax.axhline(float(data["squared_gradient"]), color="#333333", linewidth=0.9, linestyle=":")
    ax.annotate(
        r"$\|\nabla J\|^2$: no better than $g = 0$ above", (1, float(data["squared_gradient"])), xytext=(2, 4),
        textcoords="offset points", fontsize=8.5, color="#333333",
    )  # fmt: skip
    ax.set(xscale="log", yscale="log", xlabel="prompts per batch")
    ax.set_ylabel(r"$E\|\bar g - \nabla J\|^2$")
    ax.set_title(f"(c) Error of a batch, G = {int(data['group_size'])}, KL {float(data['batch_kl']):g} nat (exact)")
    ax.legend(loc="lower left")


def _draw_crossover(ax: Axes, data: dict[str, Any]) -> None:
    for G, color in zip(CROSSOVER_SIZES, _SIZE_SHADES, strict=True):
        label = f"pair of figure 3, G = {G} (exact)"
        ax.plot(data["kl"], data[f"crossover_{G}"], color=color, linewidth=2, marker="o", label=label)
    samples, G = int(data["signal_samples"]), int(data["group_size"])
    note = interval_note(SIGNAL_BATCHES, f"batches of {samples} groups")
    style = LineStyle(f"long sequences, G = {G}\n({note})", "#332288", (0, (5, 2)), "s", linewidth=1.4)
    band(ax, data["kl"], data["signal_crossover"], style, unit=None)
    ax.set(xscale="log", yscale="log", ylim=(0.7, None), xlabel="KL(current || behaviour), nats")
    ax.set_ylabel("prompts per batch")
    ax.set_title("(d) Above the line GMC has a smaller error than truncation")
    ax.legend(loc="upper right")
