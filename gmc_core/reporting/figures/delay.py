"""Figure 4: threshold, delay and group size in the bounds.

(a) worst case over all ratio laws (linear program): the squared bias bound against epsilon; (b) fixed families of laws:
the rate in the drift is not polynomial, or is the tail index; (c) the tuned bound against G, delay part and total;
(d) the G-slope of the total against the number of steps; (e) the window of steps in which the delay part leads; (f) the
group size that long sequences need. All exact but (f).
"""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gmc_core.estimators.bounds import DelaySetting, group_size_for_excess, group_size_heuristic
from gmc_core.reporting.figure_style import estimator_style
from gmc_core.reporting.profiles import Profile
from gmc_core.theory.ratio_laws import LognormalRatio, LomaxRatio, group_size_needed
from gmc_core.theory.slopes import log_slope
from gmc_core.theory.worst_case import worst_case_excess_lp

EPSILON = 0.2
WORST_CASE_VARIANCE = 1e-6
TAIL_INDEX = 3.0
TOLERANCE = 0.1
TOTAL_STEPS = (1e2, 1e3, 1e4)
WINDOW_DELAYS = (16, 256)
SLOPE_GROUPS = (4, 8, 16)
SEED = 0
_BLUES = ("#9BB8D3", "#4C7DA6", "#1B3A57")
_DELAY_COLORS = {16: "#999933", 256: "#332288"}
_DOT, _DASH = (0, (1, 1.4)), (0, (5, 2))


def plain_setting() -> DelaySetting:
    """Panel (c): all constants 1, Delta = 1/2, overlap everywhere, delay 16."""
    return DelaySetting(delay=16)


def window_setting(delay: int) -> DelaySetting:
    """Panels (d), (e): strong curvature of the overlap, kappa = 50, valid within rho_0 = kappa^(-1/2)."""
    return DelaySetting(delay=delay, overlap=50, overlap_radius=50**-0.5)


def compute(profile: Profile) -> dict[str, Any]:
    """Every plotted value; see the module docstring for the panels."""
    data: dict[str, Any] = {"epsilon": EPSILON, "tail_index": TAIL_INDEX, "tolerance": TOLERANCE}

    epsilons = np.geomspace(0.01, 0.64, profile.choose(smoke=4, cpu=13))
    data["worst_epsilon"] = epsilons
    for name in ("tic_truncate", "tic_mask"):
        found = [worst_case_excess_lp(name, WORST_CASE_VARIANCE, float(e)).value for e in epsilons]
        data[f"worst_{name}"] = np.array(found) ** 2

    drift = np.geomspace(0.02, 0.5, profile.choose(smoke=6, cpu=25))  # sqrt(chi^2), which grows linearly at first
    data["drift"] = drift
    spread = TAIL_INDEX / (TAIL_INDEX - 2)  # chi^2 of the Lomax law at unit drift
    families = {
        "gaussian": [LognormalRatio(float(np.log1p(d**2))) for d in drift],
        "lomax": [LomaxRatio(TAIL_INDEX, float(d) / spread**0.5) for d in drift],
    }
    for family, laws in families.items():
        data[f"{family}_truncate"] = np.array([law.truncate_excess(EPSILON) for law in laws])
        data[f"{family}_mask"] = np.array([law.mask_excess(EPSILON) for law in laws])
    for name in ("tic_truncate", "tic_mask"):
        worst = [worst_case_excess_lp(name, float(d) ** 2, EPSILON).value for d in drift]
        data[f"drift_worst_{name}"] = np.array(worst)

    sizes = np.geomspace(4, 256, 13)
    data["bound_sizes"], data["bound_steps"] = sizes, np.array(TOTAL_STEPS)
    setting = plain_setting()
    data["bound_delay_part"] = np.array([setting.tuned_bound(1e4, float(G), EPSILON, noise=False).value for G in sizes])
    data["bound_total"] = np.array(
        [[setting.tuned_bound(T, float(G), EPSILON).value for G in sizes] for T in TOTAL_STEPS]
    )

    steps = np.geomspace(1e2, 1e9, 57)
    data["slope_steps"], data["slope_groups"] = steps, np.array(SLOPE_GROUPS)
    setting = window_setting(max(WINDOW_DELAYS))
    data["slope"] = np.array([[setting.group_size_slope(float(T), G, EPSILON) for T in steps] for G in SLOPE_GROUPS])
    data["slope_window"] = np.array([setting.window(G, EPSILON) for G in SLOPE_GROUPS])

    groups = np.geomspace(2, 128, 25)
    data["window_sizes"], data["window_delays"] = groups, np.array(WINDOW_DELAYS)
    data["window"] = np.array([[window_setting(d).window(float(G), EPSILON) for G in groups] for d in WINDOW_DELAYS])
    data["window_closes"] = np.array([window_setting(d).largest_visible_group(EPSILON) for d in WINDOW_DELAYS])

    kls = np.array(profile.choose(smoke=[0.5, 1.0], cpu=[0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5]))
    data["need_samples"] = samples = profile.choose(smoke=500, cpu=6000)
    generator = np.random.default_rng(SEED)
    laws = [LognormalRatio.from_kl(float(kl)) for kl in kls]
    need = [group_size_needed(law, TOLERANCE, EPSILON, samples=samples, generator=generator) for law in laws]
    data["need_kl"] = kls
    data["need"] = np.array([[x.group_size, x.low, x.high] for x in need])
    data["need_second_moment"] = np.array([group_size_for_excess(x.chi_square, TOLERANCE, EPSILON) for x in laws])
    data["need_heuristic"] = group_size_heuristic(torch.from_numpy(kls)).numpy()
    return data


def draw(data: dict[str, Any]) -> Figure:
    """Six panels from the values of `compute`."""
    fig, axes = plt.subplots(2, 3, figsize=(15.5, 8.8))
    _draw_worst_case(axes[0, 0], data)
    _draw_families(axes[0, 1], data)
    _draw_tuned(axes[0, 2], data)
    _draw_slope(axes[1, 0], data)
    _draw_window(axes[1, 1], data)
    _draw_need(axes[1, 2], data)
    return fig


def _draw_worst_case(ax: Axes, data: dict[str, Any]) -> None:
    x = data["worst_epsilon"]
    for name, power in (("tic_mask", -4), ("tic_truncate", -2)):
        style, y = estimator_style(name), data[f"worst_{name}"]
        ax.plot(x, y, **style.line())
        middle = len(x) // 2
        ax.plot(x, y[middle] * (x / x[middle]) ** power * 3, color="#333333", linestyle=_DOT, linewidth=0.9)
        ax.annotate(
            rf"slope ${power}$", (x[middle], 3 * y[middle]), xytext=(6, 6), textcoords="offset points", fontsize=9,
            color="#333333",
        )  # fmt: skip
    ax.set(xscale="log", yscale="log", xlabel=r"threshold $\epsilon$")
    ax.set_ylabel(r"worst case of (bias / $AS)^2$")
    ax.set_title("(a) Worst ratio law, fixed $\\chi^2$ (LP)")
    ax.legend(loc="lower left")


def _draw_families(ax: Axes, data: dict[str, Any]) -> None:
    x = data["drift"]
    truncate, mask = estimator_style("tic_truncate"), estimator_style("tic_mask")
    alpha = float(data["tail_index"])
    curves = (
        ("worst law (LP), {}: slope 2", "drift_worst_tic_{}", _DOT),
        (f"Lomax tail {alpha:g}, {{}}: slope {alpha:g}", "lomax_{}", _DASH),
        ("Gaussian, {}: no power law", "gaussian_{}", "-"),
    )
    for label, key, dash in curves:
        for kind, style in (("mask", mask), ("truncate", truncate)):
            y, text = data[key.format(kind)], label.format(kind)
            ax.plot(x, y, color=style.color, linestyle=dash, linewidth=1.7, label=text)
    ax.set(xscale="log", yscale="log", ylim=(1e-9, 1.5), xlabel=r"drift, as $\sqrt{\chi^2(\pi\,\|\,b)}$")
    ax.set_xticks([0.02, 0.05, 0.1, 0.2, 0.5], ["0.02", "0.05", "0.1", "0.2", "0.5"])
    ax.minorticks_off()
    ax.set_ylabel(r"bias bound / $AS$")
    ax.set_title(rf"(b) Fixed families, $\epsilon$ = {float(data['epsilon']):g} (exact)")
    ax.legend(loc="lower right")


def _draw_tuned(ax: Axes, data: dict[str, Any]) -> None:
    sizes = data["bound_sizes"]
    gmc = estimator_style("gmc")
    part = data["bound_delay_part"]
    ax.plot(sizes, part, **gmc.line(label="delay part, $T = 10^4$: slope $-2/5$", markevery=2))
    for steps, total, color in zip(data["bound_steps"], data["bound_total"], _BLUES, strict=True):
        slope = f"{log_slope(sizes, total):.3f}".replace("-0.000", "0.000")
        label = f"total, $T = 10^{{{round(np.log10(steps))}}}$: slope ${slope}$"
        ax.plot(sizes, total, color=color, linewidth=1.8, label=label)
    ax.set(xscale="log", yscale="log", ylim=(3e-4, 4), xlabel="group size $G$")
    ax.set_xticks([4, 16, 64, 256], ["4", "16", "64", "256"])
    ax.minorticks_off()
    ax.set_ylabel("bound at its best step size")
    ax.set_title("(c) Tuned bound, delay 16 (exact)")
    ax.legend(loc="upper right")


def _draw_slope(ax: Axes, data: dict[str, Any]) -> None:
    steps = data["slope_steps"]
    shades = ("#F4B184", "#D55E00", "#8A3D00")
    for G, slope, (low, high), color in zip(
        data["slope_groups"], data["slope"], data["slope_window"], shades, strict=True
    ):
        ax.plot(steps, slope, color=color, linewidth=1, alpha=0.6)
        inside = (steps >= low) & (steps <= high)
        ax.plot(steps[inside], slope[inside], color=color, linewidth=3.4, label=f"G = {int(G)}")
    ax.axhline(-0.4, color="#333333", linestyle=_DOT, linewidth=1)
    ax.annotate("$-2/5$", (steps[-1], -0.4), xytext=(-30, 4), textcoords="offset points", fontsize=9)
    ax.set(xscale="log", ylim=(-0.43, 0.02), xlabel="updates $T$", ylabel=r"$d\log(\mathrm{total})\,/\,d\log G$")
    ax.set_title(f"(d) G-slope of the total, delay {max(WINDOW_DELAYS)} (exact)")
    ax.legend(loc="upper left", title="thick: inside the window of (e)", bbox_to_anchor=(0.0, 0.86))


def _draw_window(ax: Axes, data: dict[str, Any]) -> None:
    sizes = data["window_sizes"]
    for delay, window, closes in zip(data["window_delays"], data["window"], data["window_closes"], strict=True):
        color = _DELAY_COLORS[int(delay)]
        low, high = window.T
        ax.fill_between(sizes, low, high, where=high > low, color=color, alpha=0.25, linewidth=0)
        ax.plot(sizes, low, color=color, linewidth=1.6, linestyle=_DASH, label=rf"$T_{{lo}}$, delay {int(delay)}")
        ax.plot(sizes, high, color=color, linewidth=1.6, label=rf"$T^*$, delay {int(delay)}")
        ax.axvline(closes, color=color, linewidth=0.9, linestyle=_DOT)
        ax.annotate(
            f"closes at\nG = {closes:.0f}", (closes, 40), xytext=(4, 0), textcoords="offset points", color=color,
            fontsize=8.5,
        )  # fmt: skip
    ax.set(xscale="log", yscale="log", ylim=(20, 1e10), xlabel="group size $G$", ylabel="updates $T$")
    ax.set_xticks([2, 4, 8, 16, 32, 64, 128], ["2", "4", "8", "16", "32", "64", "128"])
    ax.minorticks_off()
    ax.set_title("(e) Where the $G^{-2/5}$ term leads: shaded (exact)")
    ax.legend(loc="upper right", ncols=2)


def _draw_need(ax: Axes, data: dict[str, Any]) -> None:
    kls, need = data["need_kl"], data["need"]
    gmc = estimator_style("gmc")
    ax.fill_between(kls, need[:, 1], need[:, 2], color=gmc.color, alpha=0.25, linewidth=0)
    ax.plot(kls, need[:, 0], **gmc.line(label=f"GMC (n = {int(data['need_samples'])} draws, estimate, 95 %)"))
    ax.plot(
        kls, data["need_second_moment"], color="#332288", linestyle=_DASH, linewidth=1.6,
        label=r"sufficient, from $\chi^2$ (Scarf)",
    )  # fmt: skip
    ax.plot(
        kls, data["need_heuristic"], color="#333333", linestyle=_DOT, linewidth=1.4,
        label=r"heuristic $e^{KL + 1.28\sqrt{2KL}}$",
    )  # fmt: skip
    for G in (8, 64):
        ax.axhline(G, color="#888888", linewidth=0.7)
        ax.annotate(f"G = {G}", (kls[-1], G), xytext=(0, 3), textcoords="offset points", ha="right", fontsize=8.5)
    ax.set(yscale="log", xlabel="trajectory KL(current || behaviour), nats", ylabel="group size $G$")
    ax.set_title(rf"(f) Group size for $E(M-c)_+ \leq$ {float(data['tolerance']):g}, long sequences")
    ax.legend(loc="upper left")
