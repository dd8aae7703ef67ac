"""Estimators compared under delay, each at a common step size and at its own best one.

The step size of every method is tuned in the same way, on environments that are not used for the reported numbers: the
grid value with the highest mean final return at that delay. `edge` says when the best value was the end of the grid,
so that "best" means "best of those tried".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gmc_core.estimators import make_estimator
from gmc_core.theory.stale_training import StaleRun, random_environments, train_with_delay
from gmc_core.typing import Float

__all__ = ["Comparison", "compare_under_delay"]


@dataclass(frozen=True)
class Comparison:
    """One estimator under D delays; E reporting environments, S step sizes, R recorded updates.

    `common` and `best` are runs with leading dims (D, E): at the common step size and at the estimator's own best one.
    tuning_return: (D, S) mean final return on the tuning environments; best_rate: (D,).
    """

    name: str
    delays: tuple[int, ...]
    learning_rates: tuple[float, ...]
    common_rate: float
    tuning_return: Float[Tensor, "D S"]
    best_rate: Float[Tensor, " D"]
    common: StaleRun
    best: StaleRun

    @property
    def edge(self) -> list[bool]:
        """Whether the best step size of each delay is the smallest or largest of the grid."""
        ends = torch.tensor([self.learning_rates[0], self.learning_rates[-1]], dtype=self.best_rate.dtype)
        return torch.isin(self.best_rate, ends).tolist()


def compare_under_delay(
    name: str,
    delays: Sequence[int],
    *,
    reward: str = "verifier",
    learning_rates: Sequence[float] = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0),
    common_rate: float = 0.3,
    environments: int = 32,
    tuning_environments: int = 16,
    group_size: int = 16,
    updates: int = 300,
    record_every: int = 10,
    seed: int = 0,
) -> Comparison:
    """Tune estimator `name` (its defaults) on its grid, then train it on fresh environments; exact returns.

    `reward` is a kind of `random_environments`. Every estimator called with the same `seed` meets the same
    environments, so differences may be paired.
    """
    rates = tuple(sorted(float(rate) for rate in learning_rates))
    if not rates or rates[0] <= 0 or common_rate <= 0:
        raise ValueError(f"step sizes must be > 0, got grid {list(learning_rates)} and common step {common_rate}")
    estimator = make_estimator(name)
    delay = torch.tensor(list(delays)).unsqueeze(-1)

    def train(count: int, stream: int, rate: Tensor) -> StaleRun:
        # Streams 0, 1 for tuning and 2, 3 for reporting: tasks and groups of the two never share a generator.
        tasks = random_environments(count, torch.Generator().manual_seed(1000 * seed + stream), reward=reward)
        return train_with_delay(
            estimator, delay, environments=tasks, generator=torch.Generator().manual_seed(1000 * seed + stream + 1),
            learning_rate=rate, group_size=group_size, updates=updates, record_every=record_every,
        )  # fmt: skip

    grid = torch.tensor(rates, dtype=torch.float64)
    tuning_return = train(tuning_environments, 0, grid).final_return.mean(-1)
    best_rate = grid[tuning_return.argmax(-1)]
    both = train(environments, 2, torch.stack([torch.full_like(best_rate, common_rate), best_rate], -1))
    common, best = (
        StaleRun(both.updates, both.returns[:, k], both.divergence[:, k], both.skipped[:, k], both.logits[:, k])
        for k in (0, 1)
    )
    return Comparison(name, tuple(delays), rates, common_rate, tuning_return, best_rate, common, best)
