"""Theorem 1 held against whole training runs with stale rollouts: its left side beside its right side, term by term.

Along delayed runs of a three-response policy the squared gradient is exact at every update, and so are the conditional
bias and second moment of the step that follows: every group that the behaviour policy could have drawn is enumerated.
Only the path itself is sampled. Our reconstruction, docs/theory.md sections 2 to 4.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gmc_core.estimators import ESTIMATORS, group_advantages, make_estimator
from gmc_core.estimators.bounds import biased_sgd_bound, excess_bound
from gmc_core.estimators.enumerable import EnumerablePolicy, chi_square_divergence, response_space
from gmc_core.estimators.exact_moments import ACROSS_GROUPS, enumerate_groups
from gmc_core.theory.stale_training import Environments, train_with_delay
from gmc_core.typing import Float

__all__ = ["ConditionalMoments", "DelayedBound", "bound_along_runs", "conditional_moments", "three_responses"]

SMOOTHNESS = 0.5  # L of J for a softmax over responses with rewards in [0, 1]
ADVANTAGE = 1.0  # |A_i| <= 1: leave-one-out advantages of rewards in [0, 1], unbiased
SCORE = math.sqrt(2)  # sup ||s|| of a softmax over responses
RATIO_BOUNDED = ("gmc", "water_filling", "tic_truncate", "tic_mask")  # rules with a ratio-based bias bound
_CHUNK = 16_384  # policy pairs enumerated at once


@dataclass(frozen=True)
class ConditionalMoments:
    """Exact statistics of the gradient of one group, for B pairs of policies, each of shape (B,).

    squared_bias: ||E g - grad J||^2; second_moment: E ||g||^2; largest_norm: max ||g|| over all groups;
    changed: probability that some weight of the group differs from its ratio.
    """

    squared_bias: Float[Tensor, " B"]
    second_moment: Float[Tensor, " B"]
    largest_norm: Float[Tensor, " B"]
    changed: Float[Tensor, " B"]


def conditional_moments(
    estimator: Callable[..., Tensor],
    current: EnumerablePolicy,
    behavior: EnumerablePolicy,
    reward: Float[Tensor, "B K"],
    group_size: int,
) -> ConditionalMoments:
    """`exact_moments` for a batch of policy pairs (logits (B, C, V)) at once, with leave-one-out advantages.

    ValueError for a rule that looks across groups (m2po): its weights are not those of one group.
    """
    if getattr(estimator, "name", None) in ACROSS_GROUPS:
        raise ValueError(f"{estimator.name} looks across the groups of a step; use exact_moments, one pair at a time.")
    space = current.space
    chunks = list(enumerate_groups(space.responses, group_size))
    index, log_multiplicity = (torch.cat(parts) for parts in zip(*chunks, strict=True))
    logp, logb = current.token_log_probs()[:, index], behavior.token_log_probs()[:, index]  # (B, N, G, T)
    prob = (log_multiplicity + logb.sum((-1, -2))).exp()
    advantage = group_advantages(reward[:, index], normalization="leave_one_out").double()
    step = (logp, logb, space.mask[index].expand(logp.shape), advantage)
    weight = estimator(*(values.flatten(0, 1) for values in step)).double().unflatten(0, logp.shape[:2])
    wide = EnumerablePolicy(space, current.logits.unsqueeze(1).expand(-1, len(index), -1, -1))
    g = wide.surrogate_gradient(index.expand(logp.shape[:-1]), (advantage / group_size).unsqueeze(-1) * weight)
    norm2 = g.square().sum((-1, -2))
    error = (prob[..., None, None] * g).sum(1) - current.gradient(reward)
    trajectory_ratio = (logp - logb).sum(-1, keepdim=True).exp()
    changed = (((weight - trajectory_ratio).abs() > 1e-9) & step[2]).flatten(-2).any(-1)
    return ConditionalMoments(
        squared_bias=error.square().sum((-1, -2)),
        second_moment=(prob * norm2).sum(-1),
        largest_norm=norm2.amax(-1).sqrt(),
        changed=(prob * changed).sum(-1),
    )


def three_responses(runs: int) -> Environments:
    """`runs` copies of one task: rewards 1, 0.4 and 0, and a start that prefers the worst response."""
    space = response_space(3, 1, end_token=False)
    reward = torch.tensor([1.0, 0.4, 0.0], dtype=torch.float64)
    logits = torch.tensor([[-1.0, 0.3, 0.7]], dtype=torch.float64)
    return Environments(space, reward.expand(runs, 3), logits.expand(runs, 1, 3))


@dataclass(frozen=True)
class DelayedBound:
    """Both sides of Theorem 1 for one estimator under D delays; means over R runs and T updates, shape (D,).

    squared_gradient: (D, R), mean_t ||grad J||^2 of every run (the left side, exact along the path);
    initial_squared_gradient: ||grad J||^2 before training, what the mean would be without any learning;
    second_moment, squared_bias, changed: means of `ConditionalMoments`; largest_norm: the largest of all updates;
    bound: 2 Delta / (eta T) + L eta E||g||^2 + ||bias||^2 with these exact moments;
    proved: the same with B = c A S and the ratio-based bias bound in their place, as a proof has to do
    (NaN for a rule without such a bound).
    """

    estimator: str
    delays: tuple[int, ...]
    step_size: float
    steps: int
    initial_squared_gradient: float
    squared_gradient: Float[Tensor, "D R"]
    second_moment: Float[Tensor, " D"]
    squared_bias: Float[Tensor, " D"]
    largest_norm: Float[Tensor, " D"]
    changed: Float[Tensor, " D"]
    bound: Float[Tensor, " D"]
    proved: Float[Tensor, " D"]

    @property
    def left_side(self) -> Float[Tensor, " D"]:
        """Mean of `squared_gradient` over the runs."""
        return self.squared_gradient.mean(-1)

    @property
    def standard_error(self) -> Float[Tensor, " D"]:
        """Of `left_side`, over the runs."""
        return self.squared_gradient.std(-1) / self.squared_gradient.shape[-1] ** 0.5


def bound_along_runs(
    estimator: str,
    delays: Sequence[int],
    step_size: float | int,
    *,
    steps: int,
    runs: int = 16,
    group_size: int = 4,
    epsilon: float | int = 0.2,
    seed: int = 1,
) -> DelayedBound:
    """Train `runs` copies of the `three_responses` task under every delay and put both sides of Theorem 1 together.

    estimator: a name of the menu; `epsilon` goes to the rules that have one. ValueError for m2po, which looks across
    the runs. One generator serves all delays, so two calls with equal arguments agree to the last digit.
    """
    takes_epsilon = "epsilon" in getattr(ESTIMATORS.get(estimator), "__dataclass_fields__", {})
    rule = make_estimator(estimator, **({"epsilon": epsilon} if takes_epsilon else {}))
    tasks = three_responses(runs)
    trained = train_with_delay(
        rule, list(delays), environments=tasks, generator=torch.Generator().manual_seed(seed), updates=steps,
        group_size=group_size, learning_rate=step_size, advantage="leave_one_out", record_every=1, keep_path=True,
    )  # fmt: skip
    path = trained.path[..., :-1, :, :]  # (D, R, T, C, V): the policies that were updated
    update = torch.arange(steps)
    earlier = [(update - delay).clamp_min(0) for delay in delays]
    stale = torch.stack([policies[:, when] for policies, when in zip(path, earlier, strict=True)])
    shape = path.shape[:3]
    parts: dict[str, list[Tensor]] = {}
    for now, then in zip(path.flatten(0, 2).split(_CHUNK), stale.flatten(0, 2).split(_CHUNK), strict=True):
        current, behavior = EnumerablePolicy(tasks.space, now), EnumerablePolicy(tasks.space, then)
        reward = tasks.reward[:1].expand(len(now), -1)
        found = vars(conditional_moments(rule, current, behavior, reward, group_size))
        found["slope"] = current.gradient(reward).square().sum((-1, -2))
        v = chi_square_divergence(current, behavior)
        limit = excess_bound(estimator, v, group_size, epsilon) if estimator in RATIO_BOUNDED else v * math.nan
        found["ratio_bias"] = (ADVANTAGE * SCORE * limit) ** 2
        for key, values in found.items():
            parts.setdefault(key, []).append(values)
    every = {key: torch.cat(values).reshape(shape) for key, values in parts.items()}
    mean = {key: values.mean((-1, -2)) for key, values in every.items()}

    start = EnumerablePolicy(tasks.space, tasks.logits[0])
    gap = 1.0 - start.expected_reward(tasks.reward[0]).item()
    gradient_bound = (1 + epsilon) * ADVANTAGE * SCORE
    return DelayedBound(
        estimator=estimator,
        delays=tuple(delays),
        step_size=float(step_size),
        steps=steps,
        initial_squared_gradient=start.gradient(tasks.reward[0]).square().sum().item(),
        squared_gradient=every["slope"].mean(-1),
        second_moment=mean["second_moment"],
        squared_bias=mean["squared_bias"],
        largest_norm=every["largest_norm"].amax((-1, -2)),
        changed=mean["changed"],
        bound=biased_sgd_bound(gap, step_size, steps, SMOOTHNESS, mean["second_moment"], mean["squared_bias"]),
        proved=biased_sgd_bound(gap, step_size, steps, SMOOTHNESS, gradient_bound**2, mean["ratio_bias"]),
    )
