"""Pairs (current policy, stale behaviour policy) at a chosen divergence, small enough for exact moments.

The current policy is the behaviour policy moved along its own policy gradient, roughly as the missing updates would
have moved it, or in a random direction, until KL(pi || b) has the wanted value. Our construction.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from gmc_core.estimators.enumerable import (
    EnumerablePolicy,
    chi_square_divergence,
    kl_divergence,
    response_space,
)
from gmc_core.estimators.exact_moments import ExactMoments, exact_moments
from gmc_core.estimators.weights import make_estimator

__all__ = [
    "GROUP_RULES",
    "OutOfReach",
    "PolicyPair",
    "bias_by_group_size",
    "count_larger_bias",
    "stale_pair",
    "stale_pairs",
]

GROUP_RULES = ("gmc", "snis", "water_filling", "mixture", "gepo")  # one rollout's weight depends on its group
_FARTHEST = 1e4  # parameter distance beyond which the wanted divergence is taken to be out of reach
_BISECTIONS = 80


class OutOfReach(RuntimeError):
    """The wanted divergence does not occur along the direction."""


@dataclass(frozen=True)
class PolicyPair:
    """`current` pi and `behavior` b on one response space, with the `reward` (K,) of every response (fp64)."""

    current: EnumerablePolicy
    behavior: EnumerablePolicy
    reward: Tensor

    @property
    def kl(self) -> float:
        """KL(pi || b) of whole responses, nats."""
        return kl_divergence(self.current, self.behavior).item()

    @property
    def chi_square(self) -> float:
        """v = chi^2(pi || b)."""
        return chi_square_divergence(self.current, self.behavior).item()

    @property
    def largest_ratio(self) -> float:
        """max_y pi(y) / b(y)."""
        return (self.current.response_log_probs() - self.behavior.response_log_probs()).max().exp().item()

    def moments(self, estimator: str, group_size: int, *, baseline: float = 0.5, **options: float) -> ExactMoments:
        """`exact_moments` of `estimator` with its `options`, e.g. epsilon=0.1, and advantages A_i = R_i - baseline."""
        rule = make_estimator(estimator, **options)
        return exact_moments(rule, self.current, self.behavior, self.reward, group_size, advantage=baseline)


def stale_pair(
    kl: float,
    generator: torch.Generator,
    *,
    vocabulary: int = 2,
    max_length: int = 3,
    correct: float = 0.4,
    direction: str = "gradient",
) -> PolicyPair:
    """A random pair with KL(pi || b) = `kl` nats.

    Behaviour logits are standard normal; each response is correct (reward 1, else 0) with probability `correct`, drawn
    again until some responses are correct and some are not. `direction` is "gradient" (of the expected reward at b) or
    "random" (Gaussian). The same generator state gives the same behaviour policy, rewards and direction for every `kl`.
    OutOfReach if the divergence cannot be reached in that direction.
    """
    if direction not in ("gradient", "random"):
        raise ValueError(f"direction must be 'gradient' or 'random', got {direction!r}.")
    if not kl > 0 or not 0 < correct < 1:
        raise ValueError(f"stale_pair needs kl > 0 and 0 < correct < 1, got {kl} and {correct}.")
    space = response_space(vocabulary, max_length)
    logits = torch.randn(space.contexts, space.vocabulary, generator=generator, dtype=torch.float64)
    reward = torch.zeros(space.responses, dtype=torch.float64)
    while reward.min() == reward.max():
        reward = (torch.rand(space.responses, generator=generator, dtype=torch.float64) < correct).double()
    behavior = EnumerablePolicy(space, logits)
    toward = torch.randn(logits.shape, generator=generator, dtype=torch.float64)
    if direction == "gradient":
        toward = behavior.gradient(reward)
    toward = toward / toward.norm()

    def moved(distance: float) -> EnumerablePolicy:
        return EnumerablePolicy(space, logits + distance * toward)

    low, high = 0.0, 1.0
    while kl_divergence(moved(high), behavior).item() < kl:
        low, high = high, 2 * high
        if high > _FARTHEST:
            raise OutOfReach(f"KL = {kl} nats is out of reach in this direction; ask for less.")
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if kl_divergence(moved(middle), behavior).item() < kl else (low, middle)
    return PolicyPair(moved((low + high) / 2), behavior, reward)


def stale_pairs(
    count: int, kl: float, generator: torch.Generator, *, direction: str = "gradient", correct: float = 0.4
) -> list[PolicyPair]:
    """`count` independent pairs of `stale_pair`; a policy from which `kl` is out of reach is drawn again."""
    pairs: list[PolicyPair] = []
    attempts = 0
    while len(pairs) < count:
        attempts += 1
        if attempts > 20 * count:
            raise RuntimeError(f"only {len(pairs)} of {count} pairs reach KL = {kl} nats; ask for less.")
        try:
            pairs.append(stale_pair(kl, generator, direction=direction, correct=correct))
        except OutOfReach:
            continue
    return pairs


def bias_by_group_size(
    pair: PolicyPair, estimators: Iterable[str], sizes: Iterable[int], *, baseline: float = 0.5
) -> dict[str, list[float]]:
    """||E g - grad J|| of each estimator at each group size, fixed baseline.

    A rule that weighs each rollout on its own has the same bias at every size: it is computed once, at G = 1.
    """
    sizes = list(sizes)
    bias = {}
    for name in estimators:
        if name in GROUP_RULES:
            bias[name] = [pair.moments(name, G, baseline=baseline).bias for G in sizes]
        else:
            bias[name] = [pair.moments(name, 1, baseline=baseline).bias] * len(sizes)
    return bias


def count_larger_bias(
    pairs: Iterable[PolicyPair], first: str, second: str, group_size: int, *, baseline: float = 0.5
) -> int:
    """In how many pairs the exact bias of `first` exceeds that of `second`, by more than rounding (1e-9)."""
    bias = [[pair.moments(name, group_size, baseline=baseline).bias for name in (first, second)] for pair in pairs]
    return sum(one > other + 1e-9 for one, other in bias)
