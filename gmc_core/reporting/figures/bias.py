"""Figure 3: the bias of a stale gradient against the group size. What vanishes, what persists, and how fast.

(a), (b) two outcomes, log-log and semilog, closed forms; (c) an autoregressive policy, every group enumerated;
(d) long sequences (lognormal ratios): the bias bound, exact for one rollout, conditional Monte Carlo
for the group mass.
"""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gmc_core.estimators.two_outcomes import TwoOutcomes
from gmc_core.reporting.figure_style import estimator_style
from gmc_core.reporting.profiles import Profile
from gmc_core.theory.policy_pairs import bias_by_group_size, stale_pair
from gmc_core.theory.ratio_laws import LognormalRatio, mass_excess

EPSILON = 0.2
CASE = TwoOutcomes(current=0.6, behavior=0.3, baseline=0.5)
TWO_OUTCOME_RULES = ("gmc", "water_filling", "snis", "tic_truncate", "tic_mask")
PAIR_SEED, PAIR_KL = 4, 0.5  # seed 4: a prompt that the behaviour policy answers in 9 % of cases
PAIR_RULES = ("gmc", "water_filling", "snis", "tic_truncate", "tic_mask", "uncorrected", "cispo", "ppo_clip")
SEQUENCE_KL = (0.125, 0.5, 1.0, 2.0)
SEED = 3
_KL_SHADES = ("#F4B184", "#E88A4A", "#D55E00", "#8A3D00")  # one hue for GMC, darker with the divergence
_KL_SHADES_TRUNCATE = ("#8FC4E3", "#4C9BCB", "#0072B2", "#004A75")


def reference_pair():
    """The pair of panel (c): two tokens, up to three positions, moved by half a nat along the policy gradient."""
    return stale_pair(PAIR_KL, torch.Generator().manual_seed(PAIR_SEED))


def compute(profile: Profile) -> dict[str, Any]:
    """Every plotted value; see the module docstring for the panels."""
    data: dict[str, Any] = {"epsilon": EPSILON, "pair_kl": PAIR_KL, "sequence_kl": np.array(SEQUENCE_KL)}

    sizes = np.unique(np.geomspace(2, 512, profile.choose(smoke=9, cpu=33)).round().astype(int))
    data["two_sizes"] = sizes
    for name in TWO_OUTCOME_RULES:
        data[f"two_{name}"] = np.array([abs(CASE.moments(name, int(G)).bias) for G in sizes])
    data["two_rate"] = CASE.decay_rate(EPSILON)
    data["two_snis_constant"] = abs(CASE.snis_constant())

    sizes = np.array(profile.choose(smoke=[1, 2, 4, 8], cpu=[1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64]))
    data["pair_sizes"] = sizes
    for name, bias in bias_by_group_size(reference_pair(), PAIR_RULES, [int(G) for G in sizes]).items():
        data[f"pair_{name}"] = np.array(bias)

    sizes = np.array(profile.choose(smoke=[1, 4, 16], cpu=[1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]))
    samples = profile.choose(smoke=500, cpu=20_000)
    data["sequence_sizes"], data["sequence_samples"] = sizes, samples
    generator = np.random.default_rng(SEED)
    for k, kl in enumerate(SEQUENCE_KL):
        law = LognormalRatio.from_kl(kl)
        found = [mass_excess(law, int(G), EPSILON, samples=samples, generator=generator) for G in sizes]
        data[f"sequence_gmc_{k}"] = np.array([x.value for x in found])
        data[f"sequence_gmc_interval_{k}"] = np.array([x.interval for x in found])
        data[f"sequence_truncate_{k}"] = law.truncate_excess(EPSILON)
    return data


def draw(data: dict[str, Any]) -> Figure:
    """Four panels from the values of `compute`."""
    fig, axes = plt.subplots(2, 2, figsize=(11.5, 8.8))
    _draw_two_outcomes(axes[0, 0], data)
    _draw_two_outcomes_semilog(axes[0, 1], data)
    _draw_pair(axes[1, 0], data)
    _draw_sequences(axes[1, 1], data)
    return fig


def _end_label(ax: Axes, x: float, y: float, text: str, color: str) -> None:
    ax.annotate(
        text, (x, y), xytext=(6, 0), textcoords="offset points", color=color, fontsize=8.5, va="center",
        annotation_clip=False,
    )  # fmt: skip


def _draw_two_outcomes(ax: Axes, data: dict[str, Any]) -> None:
    sizes = data["two_sizes"]
    for name in TWO_OUTCOME_RULES:
        ax.plot(sizes, data[f"two_{name}"], **estimator_style(name).line(markevery=4))
    ax.plot(
        sizes, data["two_snis_constant"] / sizes, color="#333333", linewidth=0.9, linestyle=":",
        label=f"{float(data['two_snis_constant']):.3f} / G, slope -1",
    )  # fmt: skip
    ax.set(xscale="log", yscale="log", ylim=(1e-9, 0.6), xlabel="group size $G$", ylabel="|bias| of the gradient")
    ax.set_xticks([2, 8, 32, 128, 512], ["2", "8", "32", "128", "512"])
    ax.set_title("(a) Two outcomes, log-log (exact)")
    ax.legend(loc="lower left", title="p = .6 now, q = .3 when sampled")


def _draw_two_outcomes_semilog(ax: Axes, data: dict[str, Any]) -> None:
    sizes = data["two_sizes"]
    for name in TWO_OUTCOME_RULES:
        style, y = estimator_style(name), data[f"two_{name}"]
        shown = y > 1e-9
        ax.plot(sizes[shown], y[shown], **style.line(marker=None, label=None))
        if name in ("tic_mask", "tic_truncate", "snis"):
            _end_label(ax, float(sizes[-1]), y[-1], style.label, style.color)
    gmc = data["two_gmc"]
    start, late = np.searchsorted(sizes, 64), int(np.flatnonzero(gmc > 1e-9)[-1])
    ax.annotate(
        "GMC, water-filling", (sizes[late], gmc[late]), xytext=(8, 2), textcoords="offset points",
        color=estimator_style("gmc").color, fontsize=8.5,
    )  # fmt: skip
    rate = float(data["two_rate"])
    guide = 4 * gmc[start] * np.exp(-rate * (sizes - sizes[start])) * (sizes / sizes[start]) ** -1.5
    shown = (guide > 1e-9) & (sizes >= 30)
    text = rf"slope of $G^{{-3/2}}\,e^{{-{rate:.4f}\,G}}$"
    ax.plot(sizes[shown], guide[shown], color="#333333", linewidth=0.9, linestyle=":", label=text)
    ax.set(yscale="log", ylim=(1e-9, 0.6), xlim=(-10, 690), xlabel="group size $G$ (linear axis)")
    ax.set_xticks([0, 128, 256, 384, 512])
    ax.set_ylabel("|bias| of the gradient")
    ax.set_title("(b) The same, semilog: a line is exponential decay")
    ax.legend(loc="center right")


def _draw_pair(ax: Axes, data: dict[str, Any]) -> None:
    sizes = data["pair_sizes"]
    for name in PAIR_RULES:
        ax.plot(sizes, data[f"pair_{name}"], **estimator_style(name).line())
    ax.set(xscale="log", yscale="log", xlabel="group size $G$", ylabel=r"$\|E g - \nabla J\|$")
    powers = [s for s in sizes if s & (s - 1) == 0]
    ax.set_xticks(powers, [str(s) for s in powers])
    ax.minorticks_off()
    ax.set_title(f"(c) Autoregressive policy, KL {float(data['pair_kl']):g} nat (exact)")
    ax.legend(loc="lower left", ncols=2, columnspacing=1.0)


def _draw_sequences(ax: Axes, data: dict[str, Any]) -> None:
    sizes, samples = data["sequence_sizes"], int(data["sequence_samples"])
    marker = estimator_style("gmc").marker
    for k, kl in enumerate(data["sequence_kl"]):
        mean, interval = data[f"sequence_gmc_{k}"], data[f"sequence_gmc_interval_{k}"]
        drawn = mean > 1e-4
        color = _KL_SHADES[k]
        ax.fill_between(sizes[drawn], interval[drawn, 0], interval[drawn, 1], color=color, alpha=0.25, linewidth=0)
        ax.plot(sizes[drawn], mean[drawn], color=color, linewidth=2, marker=marker, markersize=4)
        _end_label(ax, float(sizes[drawn][-1]), mean[drawn][-1], f"GMC, KL {kl:g}", color)
        flat = float(data[f"sequence_truncate_{k}"])
        ax.plot(sizes, np.full(len(sizes), flat), color=_KL_SHADES_TRUNCATE[k], linestyle=(0, (5, 2)), linewidth=1.3)
        _end_label(ax, float(sizes[-1]), flat, f"truncate, KL {kl:g}", _KL_SHADES_TRUNCATE[k])
    ax.set(xscale="log", yscale="log", ylim=(1e-4, 1.2), xlabel="group size $G$")
    ax.set_xlim(0.9, sizes[-1] * 8)
    ticks = [s for s in (1, 4, 16, 64, 256, 1024) if s <= sizes[-1]]
    ax.set_xticks(ticks, [str(s) for s in ticks])
    ax.minorticks_off()
    ax.set_ylabel(r"bias bound / $AS$:  $E(M-c)_+$,  $E(r-c)_+$")
    ax.set_title(f"(d) Long sequences (GMC: n = {samples} draws, mean, 95 %)")
