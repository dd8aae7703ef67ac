"""Figure S6: other advantages, other normalisers of the loss, and GMC with its group cap not detached.

Advantages that are not standardised are smaller, so they have two larger step sizes each; the better one, by mean area
under the curve on these same seeds, is shown and named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from gmc_core.reporting.figures.needs import Needs
from gmc_core.reporting.figures.study_panels import (
    ACCURACY,
    AREA_SHORT,
    by_category,
    headline,
    method_legend,
    seeds_note,
    styles_of,
)
from gmc_core.reporting.profiles import Profile
from gmc_core.reporting.run_records import Runs
from gmc_core.reporting.study_arrays import interval_rows, keep_better, study_arrays

if TYPE_CHECKING:
    import pandas as pd

NEEDS = Needs(("advantage",))
ADVANTAGES = {"std": "standardised", "center": "mean-centred", "length_corrected": "length-corrected"}
NORMALIZERS = {"sequence_mean_token_mean": "mean over a response's tokens", "token_mean": "mean over all tokens"}


def compute(profile: Profile) -> dict[str, Any]:
    """Arrays (method, variant, seed) at the better step size of each variant."""
    return figure_data(NEEDS.load(profile)["advantage"])


def figure_data(tables: Runs) -> dict[str, Any]:
    """`study_arrays` of the better step sizes, and `change`: area minus that of the first variant, as in main."""
    runs = tables.runs.assign(method=tables.runs["estimator"], setting=variants(tables.runs))
    generator = np.random.default_rng(6)
    data = study_arrays(tables, keep_better(runs), generator)
    change = data["area"] - data["area"][:, :1]
    return data | {
        "delay": int(runs["delay"].iloc[0]),
        "change": change,
        "change_mean": interval_rows(change, generator),
    }


def variants(runs: pd.DataFrame) -> list[str]:
    """What each run changes of the setting of `main`, in words; the setting itself is "as in main"."""
    words = []
    for run in runs.itertuples():
        parts = [ADVANTAGES[run.advantage]] if run.advantage != "std" else []
        if run.normalizer in NORMALIZERS:
            parts.append(NORMALIZERS[run.normalizer])
        if not run.detached:
            parts.append("cap not detached")
        words.append(", ".join(parts) or "as in main")
    return words


def draw(data: dict[str, Any]) -> Figure:
    """Three panels from the values of `figure_data`."""
    fig, axes = plt.subplots(1, 3, figsize=(12, 6.6), sharey=True)
    styles, settings = styles_of(data["names"]), [str(setting) for setting in data["settings"]]
    for ax, key, title, label in (
        (axes[0], "final", "(a) Final accuracy", ACCURACY),
        (axes[1], "area", "(b) Area under the curve", AREA_SHORT),
        (axes[2], "change", "(c) Area: change, same seed", "area - area as in main"),
    ):
        whole = key != "change"
        by_category(ax, styles, settings, data[key], data[f"{key}_mean"], xlim=(-0.03, 1.03) if whole else None)
        ax.set_title(title)
        ax.set_xlabel(label)
    axes[2].axvline(0, color="#444444", linewidth=1)
    for k, style in enumerate(styles):
        shift = 0.7 * (0.5 - (k + 0.5) / len(styles))
        for row, rate in enumerate(data["learning_rate"][k]):
            if np.isfinite(rate):
                axes[2].annotate(
                    f"{rate:g}", (1, len(settings) - 1 - row + shift), xycoords=("axes fraction", "data"),
                    xytext=(4, 0), textcoords="offset points", va="center", fontsize=7, color=style.color,
                    annotation_clip=False,
                )  # fmt: skip
    axes[2].annotate("step size", (1, 1), xycoords="axes fraction", xytext=(0, 3), textcoords="offset points",
                     fontsize=7.5)  # fmt: skip
    method_legend(fig, axes[:1], ncols=5)
    headline(fig, (
        f"Delay {int(data['delay'])}; where advantages are smaller, the better of two larger step sizes",
        f"{int(data['updates'])} updates", seeds_note(data["final"].shape[-1], "large marker"),
    ))  # fmt: skip
    return fig
