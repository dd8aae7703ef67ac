"""What delay does to one gradient, before any training with it: exact, no sampled groups.

Along an on-policy training path, the policy of update t is compared with the policies of updates t - delay: (a) the
angle between the gradient that uncorrected learning follows and the true one; (b) the trajectory ratios r that an
importance correction has to handle, as quantiles under the behaviour policy.
"""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure

from gmc_core.estimators import make_estimator
from gmc_core.estimators.enumerable import EnumerablePolicy, kl_divergence
from gmc_core.reporting.figure_style import LineStyle, band, estimator_style, interval_note
from gmc_core.reporting.profiles import Profile
from gmc_core.theory.stale_training import delayed_gradient, random_environments, train_with_delay

QUANTILES = (0.05, 0.5, 0.95, 0.99)


def compute(profile: Profile) -> dict[str, Any]:
    """Angles (E, D) in degrees, KL (E, D) in nats and ratio quantiles (Q, D) pooled over the E environments."""
    delays = profile.choose(smoke=[0, 1, 4, 16], cpu=[0, 1, 2, 4, 8, 16, 32, 64, 128])
    now = delays[-1]
    tasks = random_environments(profile.choose(smoke=6, cpu=32), torch.Generator().manual_seed(10), reward="graded")
    run = train_with_delay(
        make_estimator("uncorrected"), 0, environments=tasks, generator=torch.Generator().manual_seed(11),
        learning_rate=1.0, updates=now, record_every=1, keep_path=True,
    )  # fmt: skip
    current = EnumerablePolicy(tasks.space, run.path[:, now])
    truth = current.gradient(tasks.reward).flatten(-2)
    angles, divergences, quantiles = [], [], []
    for delay in delays:
        behavior = EnumerablePolicy(tasks.space, run.path[:, now - delay])
        stale = delayed_gradient(current, behavior, tasks.reward).flatten(-2)
        cosine = torch.nn.functional.cosine_similarity(stale, truth, dim=-1).clamp(-1, 1)
        angles.append(torch.rad2deg(torch.acos(cosine)) if delay else torch.zeros_like(cosine))
        divergences.append(kl_divergence(current, behavior))
        log_ratio = current.response_log_probs() - behavior.response_log_probs()
        quantiles.append(_weighted_quantiles(log_ratio.exp().flatten(), behavior.probabilities().flatten()))
    return {
        "delay": np.array(delays),
        "update": now,
        "quantile": np.array(QUANTILES),
        "angle": torch.stack(angles, -1).numpy(),
        "kl": torch.stack(divergences, -1).numpy(),
        "ratio": torch.stack(quantiles, -1).numpy(),
    }


def _weighted_quantiles(values: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    order = values.argsort()
    cumulative = weights[order].cumsum(0) / weights.sum()
    place = torch.searchsorted(cumulative, torch.tensor(QUANTILES, dtype=cumulative.dtype))
    return values[order][place.clamp(max=len(values) - 1)]


def draw(data: dict[str, Any]) -> Figure:
    """Two panels: angle and KL against delay, ratio quantiles against delay."""
    fig, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4.1))
    place = np.arange(len(data["delay"]))
    n = data["angle"].shape[0]
    look = estimator_style("uncorrected", label="uncorrected gradient", linestyle="-")
    band(left, place, data["angle"], look, unit=None)
    left.axhline(90, color="#B00020", linewidth=0.9, linestyle="--")
    left.annotate(
        "orthogonal: no progress", (0, 90), xytext=(0, 4), textcoords="offset points", color="#B00020", fontsize=8.5
    )
    left.set(ylim=(-4, 112), ylabel="angle to the true gradient (degrees)", xlabel="delay (updates)")
    left.set_title("(a) The gradient of stale rollouts turns away")
    left.legend(title=interval_note(n, "environments"), loc="center left", alignment="left")

    ratio, levels = data["ratio"], data["quantile"]
    right.fill_between(place, ratio[0], ratio[2], color="#0072B2", alpha=0.18, linewidth=0, label="5 % to 95 %")
    look = LineStyle("median", "#0072B2", "-", "o")
    right.plot(place, ratio[1], **look.line())
    right.plot(place, ratio[3], **look.line(label=f"{levels[3] * 100:.0f} % quantile", linestyle="--", marker="^"))
    right.axhline(1, color="#444444", linewidth=0.8)
    right.set_yscale("log")
    right.set(ylabel=r"trajectory ratio $r = \pi(y)/b(y)$", xlabel="delay (updates)")
    right.set_title("(b) The ratio of a stale rollout")
    right.legend(title=f"exact law of $y \\sim b$, {n} environments pooled", loc="lower left", alignment="left")
    for ax in (left, right):
        ax.set_xticks(place, [str(delay) for delay in data["delay"]])
    return fig
