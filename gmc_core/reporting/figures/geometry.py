"""Figure 2: group-mass capping, its geometry and its optimality.

(a) two rollouts: the class W, the optimal set, and where each rule lands; (b) distortion against group mass for random
groups, with the optimum found by a linear program; (c) what each rule leaves of each rollout in the group of four of
notebook 02; (d) along a line inside the optimal set: what GMC minimises and what it does not. All exact.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gmc_core.estimators import gmc_weights, self_normalized_weights, tic_weights, water_filling_weights
from gmc_core.reporting.figure_style import estimator_style
from gmc_core.reporting.profiles import Profile
from gmc_core.theory.optimal_set import distortion, kl_from_ratio, optimal_line, worst_shrink
from gmc_core.theory.worst_case import class_optimum_lp

EPSILON = 0.2
PAIR = (3.0, 0.6)  # panel (a)
GROUP_OF_FOUR = (4.0, 1.6, 0.6, 0.2)  # panels (c), (d) and notebook 02: M = 1.6
RANDOM_GROUP_SIZE = 8
RULES: dict[str, Callable[[torch.Tensor, float], torch.Tensor]] = {  # (log-ratios, epsilon) -> weights
    "gmc": gmc_weights,
    "water_filling": water_filling_weights,
    "tic_truncate": partial(tic_weights, variant="truncate"),
    "tic_mask": partial(tic_weights, variant="mask"),
    "snis": lambda log_ratio, epsilon: self_normalized_weights(log_ratio),
}


def weights_of(ratio: torch.Tensor) -> dict[str, torch.Tensor]:
    """The weights of every rule in this figure, for groups in the last dimension."""
    return {name: rule(ratio.double().log(), EPSILON) for name, rule in RULES.items()}


def compute(profile: Profile) -> dict[str, Any]:
    """Every plotted value: see the module docstring for the panels."""
    data: dict[str, Any] = {"epsilon": EPSILON, "pair_ratio": np.array(PAIR), "four_ratio": np.array(GROUP_OF_FOUR)}
    pair, four = (torch.tensor(r, dtype=torch.float64) for r in (PAIR, GROUP_OF_FOUR))
    data |= {f"pair_{name}": weight for name, weight in weights_of(pair).items()}
    data |= {f"four_{name}": weight for name, weight in weights_of(four).items()}

    # Any group of ratios will do, the statement is pathwise: lognormal shapes from even (spread .3) to uneven (1.5),
    # scaled to masses that cover both sides of the cap.
    count = profile.choose(smoke=12, cpu=48)
    generator = torch.Generator().manual_seed(2)
    spread = torch.linspace(0.3, 1.5, count, dtype=torch.float64)[torch.randperm(count, generator=generator)]
    normal = torch.randn(count, RANDOM_GROUP_SIZE, generator=generator, dtype=torch.float64)
    shape = (spread.unsqueeze(-1) * normal).exp()
    ratio = shape / shape.mean(-1, keepdim=True) * torch.linspace(0.2, 2.6, count, dtype=torch.float64).unsqueeze(-1)
    data["groups_mass"] = ratio.mean(-1)
    data["groups_lp"] = np.array([class_optimum_lp(row, EPSILON).value for row in ratio.numpy()])
    data |= {f"groups_{name}": distortion(ratio, weight) for name, weight in weights_of(ratio).items()}

    gmc, filling = data["four_gmc"], data["four_water_filling"]
    position, line = optimal_line(four, filling, gmc)
    data["line_position"] = position
    data["line_distortion"] = distortion(four, line)
    data["line_worst_shrink"] = worst_shrink(four, line)
    data["line_kl"] = kl_from_ratio(four, line)
    data["line_second_moment"] = line.square().mean(-1)
    # For rollouts whose A_i s_i are orthogonal and of equal length: the angle between the sums with w and with r.
    cosine = torch.nn.functional.cosine_similarity(line, four.expand_as(line), dim=-1)
    data["line_angle"] = torch.rad2deg(torch.acos(cosine.clamp(max=1.0)))
    return {key: value.numpy() if isinstance(value, torch.Tensor) else value for key, value in data.items()}


def draw(data: dict[str, Any]) -> Figure:
    """Four panels from the values of `compute`."""
    fig, axes = plt.subplots(2, 2, figsize=(10.5, 8.4))
    _draw_plane(axes[0, 0], data)
    _draw_distortion(axes[0, 1], data)
    _draw_shares(axes[1, 0], data)
    _draw_line(axes[1, 1], data)
    return fig


def _draw_plane(ax: Axes, data: dict[str, Any]) -> None:
    first, second = data["pair_ratio"]
    total = 2 * (1 + float(data["epsilon"]))
    ax.fill([0, total, 0], [0, 0, total], color="#DDE6EE", zorder=0, label=r"class $W$: mean weight $\leq c$")
    low, high = max(total - second, 0.0), min(total, first)
    ax.plot(
        [low, high], [total - low, total - high], color="#333333", linewidth=7, alpha=0.35, solid_capstyle="round",
        zorder=1, label=r"optimal set: $0 \leq w \leq r$, mean $c$",
    )  # fmt: skip
    ax.plot([0, first], [0, second], color=estimator_style("gmc").color, linewidth=1, linestyle=":", zorder=1)
    ax.plot([first], [second], marker="*", markersize=13, color="black", linestyle="none", label="ratios $r$ (full IS)")
    for name in RULES:
        weight = data[f"pair_{name}"]
        style = estimator_style(name)
        ax.plot([weight[0]], [weight[1]], **style.points(markersize=9 if name == "gmc" else 7.5, zorder=4))
    ax.set(xlim=(-0.1, 3.35), ylim=(-0.1, 2.55), xlabel="weight of rollout 1", ylabel="weight of rollout 2")
    ax.set_title(f"(a) Two rollouts, r = ({first:g}, {second:g})")
    ax.legend(loc="upper right", handlelength=1.4)


def _draw_distortion(ax: Axes, data: dict[str, Any]) -> None:
    mass, cap = data["groups_mass"], 1 + float(data["epsilon"])
    grid = np.linspace(0, max(mass.max() * 1.03, cap), 200)
    gmc = estimator_style("gmc")
    ax.plot(grid, np.maximum(grid - cap, 0), color=gmc.color, linewidth=gmc.linewidth, label=r"$(M-c)_+$", zorder=2)
    for name, size in (("tic_mask", 5), ("tic_truncate", 4.5), ("snis", 4), ("water_filling", 7), ("gmc", 4)):
        style = estimator_style(name)
        ax.plot(mass, data[f"groups_{name}"], **style.points(alpha=0.9, markersize=size))
    ax.plot(
        mass, data["groups_lp"], linestyle="none", marker="o", markersize=9, markerfacecolor="none",
        markeredgecolor="#333333", markeredgewidth=0.8, label="optimum over $W$ (LP)", zorder=4,
    )  # fmt: skip
    ax.axvline(cap, color="#888888", linewidth=0.8, linestyle="--")
    ax.annotate("$c$", (cap, ax.get_ylim()[1]), xytext=(3, -10), textcoords="offset points", color="#555555")
    ax.set(xlabel="group mass $M$", ylabel="distortion $D(w)$, the mean of $|r - w|$")
    ax.set_title(f"(b) Distortion of {len(mass)} random groups of {RANDOM_GROUP_SIZE}")
    ax.legend(loc="upper left")


def _draw_shares(ax: Axes, data: dict[str, Any]) -> None:
    ratio = data["four_ratio"]
    place = np.arange(len(ratio))
    offsets = {"gmc": -0.2, "water_filling": -0.1, "tic_truncate": 0.0, "tic_mask": 0.1, "snis": 0.2}
    for name, offset in offsets.items():
        share = data[f"four_{name}"] / ratio
        mean = data[f"four_{name}"].mean()
        style = estimator_style(name)
        ax.vlines(place + offset, 0, share, color=style.color, linewidth=2 if name == "gmc" else 1.2)
        ax.plot(place + offset, share, **style.points(label=f"{style.label}: mean {mean:.2f}", markersize=7))
    ax.set_xticks(place, [f"$r$ = {value:g}" for value in ratio])
    ax.set(ylim=(-0.05, 1.5), ylabel="share kept, $w_i / r_i$", xlabel=f"rollout (group mass M = {ratio.mean():g})")
    ax.set_yticks(np.linspace(0, 1, 5))
    ax.set_title("(c) Four rollouts: share kept, and mean weight")
    ax.legend(loc="upper left", ncols=2, columnspacing=0.8, handletextpad=0.3)


def _draw_line(ax: Axes, data: dict[str, Any]) -> None:
    position = data["line_position"]
    curves = {  # quantities, not estimators: colours that no estimator of this figure has
        "line_distortion": ("distortion $D(w)$: constant", "#333333", "-"),
        "line_angle": ("angle to the IS gradient", "#882255", "-"),
        "line_kl": ("KL of $w$ from $r$", "#332288", (0, (5, 2))),
        "line_worst_shrink": ("worst relative shrink", "#117733", (0, (5, 1.5, 1, 1.5))),
        "line_second_moment": ("second moment of $w$", "#999933", (0, (1, 1.4))),
    }
    for key, (label, color, linestyle) in curves.items():
        values = data[key]
        ax.plot(position, values / values.max(), label=label, color=color, linestyle=linestyle, linewidth=1.9)
    for place, text in ((0.0, "water-filling"), (1.0, "GMC")):
        ax.axvline(place, ymax=0.69, color="#888888", linewidth=0.8, linestyle="--")
        ax.annotate(text, (place, 1.04), xytext=(-3, 0), textcoords="offset points", color="#444444", fontsize=9)
    ax.set(xlabel="position on a line through the optimal set", ylabel="value / largest value on the line")
    ax.set(ylim=(-0.04, 1.5), xlim=(-0.08, position.max() + 0.05))
    ax.set_yticks(np.linspace(0, 1, 6))
    ax.set_title("(d) Along the optimal set of the same group")
    ax.legend(loc="upper left", ncols=2, columnspacing=0.8)
