"""Exact expectation, bias and second moment of any estimator's gradient, by enumerating the groups.

    current, behavior = EnumerablePolicy(space, logits), EnumerablePolicy(space, stale_logits)
    moments = exact_moments(make_estimator("gmc"), current, behavior, reward, group_size=8)
    moments.bias, moments.second_moment, moments.variance, moments.mse(prompts=32)

Shape suffixes: N groups, G rollouts, K responses, T tokens, C contexts, V tokens of the vocabulary (see `enumerable`).
Our reconstruction, docs/theory.md sections 2 and 3.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gmc_core.estimators.advantages import group_advantages
from gmc_core.estimators.enumerable import EnumerablePolicy
from gmc_core.typing import Float

__all__ = ["ExactMoments", "enumerate_groups", "exact_moments", "mse_crossover"]

MAX_GROUPS = 3_000_000  # more groups than this are refused: they would take minutes and gigabytes
ACROSS_GROUPS = frozenset({"m2po"})  # rules that look at all tokens of a step and at their order, not at one group
MAX_SINGLE_GROUPS = 100_000  # for these, each group is a step of its own: one call per group
_CHUNK_TOKENS = 1 << 21  # tokens handled at once: bounds the memory


def enumerate_groups(responses: int, group_size: int, *, ordered: bool = False) -> Iterator[tuple[Tensor, Tensor]]:
    """All groups of G responses out of K, in chunks of (index (n, G), log multiplicity (n,) in fp64).

    `ordered=False` lists the multisets, C(K+G-1, G) of them, each with log of G! / prod_k n_k!; `ordered=True` lists
    all K^G ordered groups (multiplicity 1). The two give equal expectations for every permutation-equivariant
    estimator (the weight of a rollout does not depend on the order of the group); the ordered list serves to check it.
    """
    if (number := _number_of_groups(responses, group_size, ordered)) > MAX_GROUPS:
        raise ValueError(
            f"{number} groups of {group_size} out of {responses} responses: more than {MAX_GROUPS}. Use fewer "
            "responses (vocabulary, max_length), a smaller group, or ordered=False."
        )
    members = range(responses)
    multisets = itertools.combinations_with_replacement
    rows = itertools.product(members, repeat=group_size) if ordered else multisets(members, group_size)
    chunk = max(1, _CHUNK_TOKENS // (4 * group_size))
    while block := list(itertools.islice(rows, chunk)):
        index = torch.tensor(block, dtype=torch.long).reshape(len(block), group_size)
        if ordered:
            yield index, torch.zeros(len(block), dtype=torch.float64)
        else:
            count = torch.zeros(len(block), responses, dtype=torch.float64)
            count.scatter_add_(1, index, torch.ones_like(index, dtype=torch.float64))
            yield index, math.lgamma(group_size + 1) - torch.lgamma(count + 1).sum(-1)


def _number_of_groups(responses: int, group_size: int, ordered: bool) -> int:
    if group_size < 1:
        raise ValueError(f"group_size must be >= 1, got {group_size}.")
    return responses**group_size if ordered else math.comb(responses + group_size - 1, group_size)


@dataclass(frozen=True)
class ExactMoments:
    """Exact statistics of one group's gradient g = (1/G) sum_i A_i sum_t w_it grad log pi_it (fp64, no sampling).

    mean: E g, (C, V); target: grad J, (C, V); second_moment: E ||g||^2; variance: E ||g - E g||^2;
    bias: ||E g - grad J||; max_norm: the largest ||g|| over all groups; distortion: E D(w) with
    D(w) = (1/G) sum_i mean_t |r_i - w_it|; advantage_bound: max |A_i|; score_bound: max_y ||s(y)||;
    rollout_bound: E (1/G) sum_i |A_i| ||sum_t (w_it - r_i) grad log pi_it||, a bound on the bias of every estimator,
    token-level ones too, wherever the weights r_i are unbiased (a fixed baseline or leave-one-out advantages).
    With a length normaliser w_it stands for w_it / |y_i|.
    """

    mean: Tensor
    target: Tensor
    second_moment: float
    variance: float
    bias: float
    max_norm: float
    distortion: float
    advantage_bound: float
    score_bound: float
    rollout_bound: float

    @property
    def ratio_bound(self) -> float:
        """A S E D(w): the ratio-based bias bound of docs/theory.md section 3 (trajectory-level weights)."""
        return self.advantage_bound * self.score_bound * self.distortion

    @property
    def cosine(self) -> float:
        """Cosine of the angle between E g and grad J: what a change of scale cannot touch."""
        return float((self.mean * self.target).sum() / (self.mean.norm() * self.target.norm()))

    def mse(self, prompts: float | int = 1) -> float:
        """Mean squared error of the average of `prompts` independent groups: bias^2 + variance / prompts."""
        return self.bias**2 + self.variance / prompts


def mse_crossover(squared_bias: tuple[float, float], variance: tuple[float, float]) -> float:
    """Number of prompts per batch above which the first estimator has the smaller mean squared error.

    bias_1^2 + var_1 / n < bias_2^2 + var_2 / n for n > (var_1 - var_2) / (bias_2^2 - bias_1^2). 0 if the first is
    better at any n; inf if its bias is the larger one, so that it does not win by averaging more prompts.
    """
    more_variance, less_bias = variance[0] - variance[1], squared_bias[1] - squared_bias[0]
    if less_bias <= 0:
        return math.inf
    return max(more_variance / less_bias, 0.0)


def exact_moments(
    estimator: Callable[..., Tensor],
    current: EnumerablePolicy,
    behavior: EnumerablePolicy,
    reward: Float[Tensor, " K"],
    group_size: int,
    *,
    advantage: str | float | int = "leave_one_out",
    normalizer: str | None = None,
    ordered: bool | None = None,
) -> ExactMoments:
    """Expectation, bias and second moment of an estimator's gradient over all groups of `group_size` rollouts from b.

    estimator: anything with the signature of `make_estimator(...)`; advantage: a name of `group_advantages`, or a
    number, the fixed baseline beta of A_i = R_i - beta; normalizer: "sequence_mean_token_sum" or
    "sequence_mean_token_mean" (each rollout also divided by its length), by default the one the estimator's derivation
    assumes; ordered: see `enumerate_groups`, by default multisets, but ordered groups, one call each, for the rules in
    `ACROSS_GROUPS`: m2po masks tokens across a whole step, ties in storage order, so here one group is the whole step.
    Log-probabilities enter in fp64, hence so do the weights.
    """
    by_group = getattr(estimator, "name", None) in ACROSS_GROUPS
    ordered = by_group if ordered is None else ordered
    if by_group and (number := _number_of_groups(current.space.responses, group_size, ordered)) > MAX_SINGLE_GROUPS:
        raise ValueError(
            f"{number} groups, one call each, for an estimator that looks across groups: more than "
            f"{MAX_SINGLE_GROUPS}. Use fewer responses (vocabulary, max_length) or a smaller group."
        )
    normalizer = normalizer or getattr(estimator, "normalizer", None) or "sequence_mean_token_sum"
    if current.batch_shape or behavior.batch_shape:
        raise ValueError(
            f"exact_moments takes one pair of policies, got batches {current.batch_shape} and {behavior.batch_shape}: "
            "loop over the batch."
        )
    if normalizer not in ("sequence_mean_token_sum", "sequence_mean_token_mean"):
        raise ValueError(
            f"unknown normalizer {normalizer!r} for a single group: use 'sequence_mean_token_sum' or "
            "'sequence_mean_token_mean'."
        )
    space = current.space
    current = EnumerablePolicy(space, current.logits.detach().double())
    behavior = EnumerablePolicy(space, behavior.logits.detach().double())
    reward = reward.detach().double()
    logp, logb = current.token_log_probs(), behavior.token_log_probs()
    ratio = (logp - logb).sum(-1).exp()
    log_prob_behavior = logb.sum(-1)
    length = space.lengths.double()
    token_norm2 = current.token_scores().square().sum((-1, -2))  # tokens sit in different contexts: norms add

    mean = torch.zeros_like(current.logits)
    sums = dict.fromkeys(("second_moment", "distortion", "rollout_bound"), 0.0)
    largest = dict.fromkeys(("max_norm", "advantage_bound"), 0.0)
    for index, log_multiplicity in enumerate_groups(space.responses, group_size, ordered=ordered):
        prob = (log_multiplicity + log_prob_behavior[index].sum(-1)).exp()
        adv = _advantage(reward[index], advantage, space.lengths[index])
        mask = space.mask[index]
        step = (logp[index], logb[index], mask, adv)
        rows = [estimator(*(x[None] for x in row))[0] for row in zip(*step, strict=True)] if by_group else None
        weight = estimator(*step) if rows is None else torch.stack(rows)
        weight = torch.where(mask, weight.double(), 0.0)
        if normalizer == "sequence_mean_token_mean":
            weight = weight / length[index].unsqueeze(-1)
        g = current.surrogate_gradient(index, (adv / group_size).unsqueeze(-1) * weight)
        norm2 = g.square().sum((-1, -2))
        error = torch.where(mask, weight - ratio[index].unsqueeze(-1), 0.0)
        per_rollout = adv.abs() * (error.square() * token_norm2[index]).sum(-1).sqrt()
        mean += torch.einsum("n,ncv->cv", prob, g)
        sums["second_moment"] += float(prob @ norm2)
        sums["distortion"] += float(prob @ (error.abs().sum(-1) / length[index]).mean(-1))
        sums["rollout_bound"] += float(prob @ per_rollout.mean(-1))
        largest["max_norm"] = max(largest["max_norm"], float(norm2.max().sqrt()))
        largest["advantage_bound"] = max(largest["advantage_bound"], float(adv.abs().max()))
    target = current.gradient(reward)
    return ExactMoments(
        mean=mean,
        target=target,
        variance=max(sums["second_moment"] - float(mean.square().sum()), 0.0),
        bias=float((mean - target).norm()),
        score_bound=float(token_norm2.sum(-1).max().sqrt()),
        **sums,
        **largest,
    )


def _advantage(reward_NG: Tensor, advantage: str | float | int, lengths_NG: Tensor) -> Tensor:
    if not isinstance(advantage, str):
        return reward_NG - float(advantage)
    lengths = lengths_NG if advantage == "length_corrected" else None
    return group_advantages(reward_NG, normalization=advantage, lengths=lengths).double()
