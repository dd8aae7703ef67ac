"""Training with stale rollouts on enumerable policies: notebook 01's figure (exact returns, sampled groups).

Two kinds of task (rows): a 0/1 verifier, and graded rewards. Columns: learning curves at the largest delay and a common
step size; final return against delay at that step size; final return at the largest delay at the common step size and
at each estimator's own best one.
"""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gmc_core.estimators import ESTIMATORS
from gmc_core.reporting.figure_style import HEADLINE, estimator_style, interval_note, mean_interval
from gmc_core.reporting.profiles import Profile
from gmc_core.theory.stale_comparison import Comparison, compare_under_delay

TASKS = {"verifier": "0/1 verifier", "graded": "graded rewards"}
EXPLORATORY_RATE = 0.3  # the step size of an earlier exploratory run, kept for the verifier tasks


def compute(profile: Profile) -> dict[str, Any]:
    """Per task: `names`, `delay`, and mean, low, high (last axis) of curves, returns and paired differences to GMC.

    The verifier's common step size is that of the exploratory run; for graded rewards it is the best one without delay,
    where every rule of the headline menu is the same.
    """
    size: dict[str, Any] = profile.choose(
        smoke={"updates": 40, "learning_rates": (1.0, 10.0)},
        cpu={"updates": 300, "learning_rates": (1.0, 3.0, 10.0, 30.0, 100.0)},
    )
    # Graded rewards need more environments: which response a run settles on is partly luck.
    counts = profile.choose(
        smoke={"verifier": (4, 5), "graded": (4, 5)},
        cpu={"verifier": (16, 32), "graded": (32, 64)},
    )
    delays = profile.choose(smoke=(4, 8), cpu=(16, 64))
    data: dict[str, Any] = {"delay": np.array((0, *delays))}
    for task, (tuning, reporting) in counts.items():
        size |= {"tuning_environments": tuning, "environments": reporting}
        on_policy = compare_under_delay("gmc", (0,), reward=task, common_rate=EXPLORATORY_RATE, **size)
        rate = EXPLORATORY_RATE
        if task == "graded":
            rate = float(on_policy.best_rate[0])
            on_policy = compare_under_delay("gmc", (0,), reward=task, common_rate=rate, **size)
        data[f"{task}_environments"] = reporting
        runs = {name: compare_under_delay(name, delays, reward=task, common_rate=rate, **size) for name in HEADLINE}
        data |= {f"{task}_{key}": value for key, value in _summary(runs, on_policy).items()}
    # The rest of the menu: graded rewards, largest delay.
    rest = [name for name in ESTIMATORS if name not in HEADLINE]
    runs |= {name: compare_under_delay(name, delays[-1:], reward="graded", common_rate=rate, **size) for name in rest}
    return data | {f"menu_{key}": value for key, value in _menu(runs).items()}


def _interval(samples: Any) -> np.ndarray:
    return np.stack(mean_interval(samples)[:3], -1)


def _summary(runs: dict[str, Comparison], on_policy: Comparison) -> dict[str, Any]:
    first = next(iter(runs.values()))
    together = {"common": [], "best": []}
    for which, rows in together.items():
        start = _interval(getattr(on_policy, which).final_return[0])
        for run in runs.values():
            rows.append(np.stack([start, *map(_interval, getattr(run, which).final_return)]))
    reference = runs["gmc"].common.final_return
    return {
        "names": list(runs),  # the order of every first axis below
        "update": first.common.updates,
        "rate": float(first.common_rate),
        "curve": np.stack([_interval(run.common.returns[-1]) for run in runs.values()]),
        "on_policy_curve": _interval(on_policy.common.returns[0]),
        **{which: np.stack(rows) for which, rows in together.items()},
        "best_rate": np.array([[float(rate) for rate in run.best_rate] for run in runs.values()]),
        # at the common step size: difference to GMC, paired by environment, and KL(current || behaviour) over training;
        # at the best one: difference of the largest delay to no delay, paired as well
        "difference": np.stack([
            np.stack([_interval(row) for row in run.common.final_return - reference]) for run in runs.values()
        ]),
        "over_no_delay": np.stack([
            _interval(run.best.final_return[-1] - on_policy.best.final_return[0]) for run in runs.values()
        ]),
        "kl": np.stack([run.common.divergence.mean((-1, -2)) for run in runs.values()]),
    }  # fmt: skip


def _menu(runs: dict[str, Comparison]) -> dict[str, Any]:
    """The whole menu at the largest delay: returns, best step size, and the difference to GMC paired by environment."""
    gmc = runs["gmc"]
    return {
        "names": list(runs),
        **{which: np.stack([_interval(getattr(run, which).final_return[-1]) for run in runs.values()])
           for which in ("common", "best")},
        "difference": np.stack([
            _interval(run.best.final_return[-1] - gmc.best.final_return[-1]) for run in runs.values()
        ]),
        "best_rate": np.array([float(run.best_rate[-1]) for run in runs.values()]),
        "edge": np.array([run.edge[-1] for run in runs.values()]),
    }  # fmt: skip


def draw(data: dict[str, Any]) -> Figure:
    """Two rows (tasks) of three panels from the values of `compute`."""
    fig, axes = plt.subplots(2, 3, figsize=(13.5, 8.0), width_ratios=(1.15, 1, 1.05))
    for row, (task, title) in enumerate(TASKS.items()):
        part = {key.removeprefix(f"{task}_"): value for key, value in data.items() if key.startswith(f"{task}_")}
        delay, n, rate = data["delay"], int(part["environments"]), float(part["rate"])
        _draw_curves(axes[row, 0], part)
        axes[row, 0].set_title(f"({'ad'[row]}) {title}: delay {delay[-1]}, step {rate:g}")
        axes[row, 0].annotate(
            interval_note(n, "environments"), (0.98, 0.03), xycoords="axes fraction", ha="right", fontsize=8.5
        )
        _draw_delays(axes[row, 1], part, delay)
        axes[row, 1].set_title(f"({'be'[row]}) Final return, step {rate:g}, n = {n}")
        _draw_best(axes[row, 2], part, rate)
        axes[row, 2].set_title(f"({'cf'[row]}) Final return, delay {delay[-1]}, n = {n}")
    fig.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=9)
    return fig


def _draw_curves(ax: Axes, part: dict[str, Any]) -> None:
    for name, curve in zip(part["names"], part["curve"], strict=True):
        style = estimator_style(str(name))
        mean, low, high = curve.T
        ax.fill_between(part["update"], low, high, color=style.color, alpha=0.08, linewidth=0, zorder=style.zorder - 1)
        ax.plot(part["update"], mean, **style.line(markevery=5))
    ax.plot(part["update"], part["on_policy_curve"][:, 0], color="#444444", linewidth=1, label="no delay", zorder=2)
    ax.set(xlabel="update", ylabel="exact return $J$")


def _draw_delays(ax: Axes, part: dict[str, Any], delay: np.ndarray) -> None:
    place = np.arange(len(delay))
    for k, (name, values) in enumerate(zip(part["names"], part["common"], strict=True)):
        style = estimator_style(str(name))
        mean, low, high = values.T
        shifted = place + 0.035 * (k - len(part["names"]) / 2) * (place > 0)  # at delay 0 all rules are one
        ax.vlines(shifted, low, high, color=style.color, linewidth=1.2)
        ax.plot(shifted, mean, **style.line())
    ax.set_xticks(place, [str(d) for d in delay])
    ax.set(xlabel="delay (updates)", ylabel="exact final return")


def _draw_best(ax: Axes, part: dict[str, Any], rate: float) -> None:
    names = [str(name) for name in part["names"]]
    for k, name in enumerate(reversed(names)):
        style = estimator_style(name)
        row = names.index(name)
        for which, height, face in (("common", 0.14, "white"), ("best", -0.14, style.color)):
            mean, low, high = part[which][row, -1]
            ax.hlines(k + height, low, high, color=style.color, linewidth=1.4)
            ax.plot(mean, k + height, marker="o", color=style.color, markerfacecolor=face, markersize=6)
        ax.annotate(
            f"{part['best_rate'][row, -1]:g}", (1.0, k - 0.14), xycoords=("axes fraction", "data"), xytext=(4, 0),
            textcoords="offset points", va="center", fontsize=8, color="#444444", annotation_clip=False,
        )  # fmt: skip
    ax.annotate("step", (1.0, 1.0), xycoords="axes fraction", xytext=(2, 2), textcoords="offset points", fontsize=8)
    ax.set_yticks(range(len(names)), [estimator_style(name).label for name in reversed(names)])
    ax.plot([], [], marker="o", linestyle="none", color="#444444", markerfacecolor="white", label=f"step {rate:g}")
    ax.plot([], [], marker="o", linestyle="none", color="#444444", label="own best step")
    ax.set(xlabel="exact final return", ylim=(-1.5, len(names) - 0.4))
    ax.legend(loc="lower left", ncols=2, columnspacing=0.8, handletextpad=0.2)


def menu_table(data: dict[str, Any]) -> Any:
    """The whole menu on graded rewards at the largest delay as a pandas table, best first."""
    import pandas as pd

    def cell(values: np.ndarray) -> str:
        mean, low, high = values
        return f"{mean:.3f} [{low:.3f}, {high:.3f}]"

    rows = [
        {
            "estimator": str(name),
            "common step": cell(common),
            "own best step": cell(best),
            "difference to GMC": "" if name == "gmc" else cell(difference),
            "best step": f"{rate:g}" + (" (edge of the grid)" if edge else ""),
            "_mean": best[0],
        }
        for name, common, best, difference, rate, edge in zip(
            *(data[f"menu_{key}"] for key in ("names", "common", "best", "difference", "best_rate", "edge")),
            strict=True,
        )
    ]
    table = pd.DataFrame(rows).sort_values("_mean", ascending=False, kind="stable").drop(columns="_mean")
    return table.set_index("estimator")
