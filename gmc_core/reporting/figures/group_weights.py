"""One group of four under every rule, whatever its first ratio: the slider of notebook 02 and its static form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gmc_core.reporting.figure_style import apply_style, estimator_style
from gmc_core.reporting.figures.geometry import GROUP_OF_FOUR, RULES
from gmc_core.theory.optimal_set import distortion

FIRST = (1.0, 4.0, 16.0)  # the ratios of the static form


def draw_groups(first: Sequence[float] = FIRST, epsilon: float = 0.2) -> Figure:
    """The weights of every rule, a panel per value of the first ratio; the others are those of the hand example."""
    apply_style()
    fig, axes = plt.subplots(1, len(first), figsize=(3.9 * len(first), 3.7), squeeze=False)
    for ax, value in zip(axes[0], first, strict=True):
        _draw_group(ax, torch.tensor([value, *GROUP_OF_FOUR[1:]], dtype=torch.float64), epsilon)
    axes[0, 0].set_ylabel("weight $w_i$")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return fig


def _draw_group(ax: Axes, ratio: torch.Tensor, epsilon: float) -> None:
    place = np.arange(len(ratio))
    ax.bar(place, ratio.numpy(), width=0.86, color="#DDE6EE", label="ratio $r_i$", zorder=1)
    least = max(float(ratio.mean()) - 1 - epsilon, 0.0)
    note = [f"M = {float(ratio.mean()):.2f}, least D = {least:.2f}"]
    for name, offset in zip(RULES, np.linspace(-0.32, 0.32, len(RULES)), strict=True):
        weight = RULES[name](ratio.log(), epsilon)
        style = estimator_style(name)
        ax.vlines(place + offset, 0, weight.numpy(), color=style.color, linewidth=1.4, zorder=2)
        ax.plot(place + offset, weight.numpy(), **style.points(markersize=6.5))
        note.append(f"D = {float(distortion(ratio, weight)):.2f}  {style.label}")
    ax.set_xticks(place, [f"{value:g}" for value in ratio.tolist()])
    ax.set(xlabel="ratio of the rollout")
    ax.set_title(f"first ratio {float(ratio[0]):g}")
    ax.annotate("\n".join(note), (0.97, 0.97), xycoords="axes fraction", ha="right", va="top", fontsize=8)


def slider() -> Any:
    """Sliders for the first ratio and epsilon (needs ipywidgets; alive in a running kernel). Returns the widget."""
    import ipywidgets

    def show(log2_first: float, epsilon: float) -> None:
        draw_groups([round(2**log2_first, 3)], epsilon)
        plt.show()

    return ipywidgets.interactive(
        show,
        log2_first=ipywidgets.FloatSlider(2.0, min=-2, max=6, step=0.25, description="log2 r1"),
        epsilon=ipywidgets.FloatSlider(0.2, min=0, max=2, step=0.05, description="epsilon"),
    )
