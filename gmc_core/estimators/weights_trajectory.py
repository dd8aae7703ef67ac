"""Weights of one trajectory at a time (and GEPO, whose denominator is a group average of probabilities).

r_i is the trajectory ratio, A_i the advantage, |y_i| the number of response tokens, s_i = r_i^(1/|y_i|).
Inputs have one entry per rollout, any shape (...); weights are detached, without unit, float32 (float64 for float64
input). A rollout that does not count (log-ratio NaN or +inf, or not `valid`) gets weight 0. Ratios beyond the range of
the dtype are held at its largest finite number.
"""

import math

import torch
from torch import Tensor

from gmc_core.estimators.checks import Number, check_choice, check_number, check_shape, check_tensor, computing_dtype
from gmc_core.estimators.groups import GroupLayout, saturating_exp
from gmc_core.estimators.importance_ratios import counted_rollouts
from gmc_core.estimators.weights_group import check_epsilon
from gmc_core.typing import Float, Int, Shaped

TIC_VARIANTS = ("mask", "truncate")


def uncorrected_weights(
    log_ratio: Float[Tensor, "..."], *, valid: Shaped[Tensor, "..."] | None = None
) -> Float[Tensor, "..."]:
    """w_i = 1: REINFORCE on stale data, with no correction for staleness."""
    log_ratio, counted = _prepare(log_ratio, valid)
    return counted.to(log_ratio.dtype)


def is_weights(log_ratio: Float[Tensor, "..."], *, valid: Shaped[Tensor, "..."] | None = None) -> Float[Tensor, "..."]:
    """w_i = r_i: full importance sampling, unbiased, of unbounded second moment."""
    log_ratio, _ = _prepare(log_ratio, valid)
    return saturating_exp(log_ratio)


def tic_weights(
    log_ratio: Float[Tensor, "..."],
    epsilon: Number = 0.2,
    *,
    variant: str = "mask",
    valid: Shaped[Tensor, "..."] | None = None,
) -> Float[Tensor, "..."]:
    """Trajectory importance clipping (TIC-GRPO, arXiv 2508.02833) with c = 1 + epsilon, for every sign of A.

    variant="mask":     w_i = r_i 1{r_i <= c}, what autograd gives for its objective min(r, c) A;
    variant="truncate": w_i = min(r_i, c), what its proof uses; equal to sequence-level truncated IS.
    Which of the two the paper means decides the epsilon-dependence of its bound, so both are baselines here
    (our reading: docs/theory.md section 4).
    """
    check_choice("variant of tic_weights", variant, TIC_VARIANTS)
    cap = 1.0 + check_epsilon(epsilon)
    log_ratio, _ = _prepare(log_ratio, valid)
    beyond = 0.0 if variant == "mask" else cap
    return torch.where(log_ratio > math.log(cap), beyond, saturating_exp(log_ratio))


def seq_mis_weights(
    log_ratio: Float[Tensor, "..."], cap: Number = 2.0, *, valid: Shaped[Tensor, "..."] | None = None
) -> Float[Tensor, "..."]:
    """Sequence-level masked importance sampling: w_i = r_i 1{r_i <= cap} (verl's rollout correction, cap 2)."""
    check_cap(cap)
    log_ratio, _ = _prepare(log_ratio, valid)
    return torch.where(log_ratio > math.log(cap), 0.0, saturating_exp(log_ratio))


def topr_weights(
    log_ratio: Float[Tensor, "..."],
    advantage: Float[Tensor, "..."],
    *,
    valid: Shaped[Tensor, "..."] | None = None,
) -> Float[Tensor, "..."]:
    """Tapered off-policy REINFORCE (TOPR, arXiv 2503.14286): w_i = 1 for A_i >= 0, min(r_i, 1) for A_i < 0.

    The paper splits by the sign of the reward; with a group baseline that sign is the sign of the advantage, which is
    how we read it here.
    """
    log_ratio, counted = _prepare(log_ratio, valid)
    advantage = _per_rollout("advantage", advantage, log_ratio)
    tapered = torch.exp(log_ratio.clamp_max(0.0))
    return torch.where(counted & ~(advantage < 0), torch.ones_like(tapered), tapered)


def gspo_weights(
    log_ratio: Float[Tensor, "..."],
    length: Shaped[Tensor, "..."],
    advantage: Float[Tensor, "..."],
    low: Number = 3e-4,
    high: Number = 4e-4,
    *,
    valid: Shaped[Tensor, "..."] | None = None,
) -> Float[Tensor, "..."]:
    """GSPO (arXiv 2507.18071): w_i = s_i where min(s A, clip(s, 1 - low, 1 + high) A) picks s, else 0.

    s_i = r_i^(1/|y_i|) with `length` |y_i| in tokens. Use it with the normaliser `sequence_mean_token_mean`: the score
    of s_i carries a factor 1/|y_i|, which that normaliser supplies.
    """
    check_clip(low, high)
    log_ratio, counted = _prepare(log_ratio, valid)
    length = _per_rollout("length", length, log_ratio)
    log_s = log_ratio / length.clamp_min(1)
    return clip_picks_ratio(log_s, _per_rollout("advantage", advantage, log_ratio), low, high, counted)


def gepo_weights(
    mean_logp_current: Float[Tensor, "..."],
    mean_logp_behavior: Float[Tensor, "..."],
    advantage: Float[Tensor, "..."],
    low: Number = 0.2,
    high: Number = 0.2,
    *,
    group_index: Int[Tensor, "..."] | None = None,
    valid: Shaped[Tensor, "..."] | None = None,
) -> Float[Tensor, "..."]:
    """GEPO (arXiv 2508.17850): w_i = p_i / (sum_j q_j^2 / sum_j q_j), with the PPO clip of `gspo_weights`.

    p_i, q_i are the geometric means over tokens of the current and behaviour probabilities; pass their logs, i.e. the
    mean token log-probability of each rollout. The denominator is the group's expectation of q under weights
    proportional to q. Groups as in `gmc_weights` (last dimension, or `group_index`).
    Our reading of the published code: the weight is clipped as in PPO and its score carries 1/|y_i|, so it goes with
    the normaliser `sequence_mean_token_mean`. At zero staleness w_i is not 1 but q_i over the group's expectation.
    """
    check_clip(low, high)
    check_shape("mean_logp_behavior", mean_logp_behavior, mean_logp_current.shape, "one entry per rollout")
    log_ratio, counted = _prepare(mean_logp_current - mean_logp_behavior, valid)
    layout = GroupLayout(log_ratio.shape, group_index, what="mean_logp_current")
    log_q = torch.where(counted, mean_logp_behavior.detach().to(log_ratio.dtype), -torch.inf)
    packed = layout.pack(log_q, -torch.inf)
    if packed.shape[-1]:
        log_expected = torch.logsumexp(2 * packed, -1, keepdim=True) - torch.logsumexp(packed, -1, keepdim=True)
        log_expected = layout.unpack(log_expected.expand_as(packed))
    else:
        log_expected = log_q
    log_w = torch.where(counted, mean_logp_current.detach().to(log_ratio.dtype) - log_expected, -torch.inf)
    return clip_picks_ratio(log_w, _per_rollout("advantage", advantage, log_ratio), low, high, counted)


def vespo_weights(
    log_ratio: Float[Tensor, "..."],
    advantage: Float[Tensor, "..."],
    k_positive: Number = 2.0,
    lambda_positive: Number = 3.0,
    k_negative: Number = 3.0,
    lambda_negative: Number = 2.0,
    *,
    valid: Shaped[Tensor, "..."] | None = None,
) -> Float[Tensor, "..."]:
    """VESPO (arXiv 2602.10693): w_i = r_i^k exp(lambda (1 - r_i)), detached, k and lambda by the sign of A_i.

    A = 0 takes the positive pair (it has no gradient either way). The weight is 1 at r = 1, peaks at r = k / lambda and
    tends to 0 for r to 0 (k > 0) and r to infinity (lambda > 0). r is the ratio of the whole sequence, in log space
    and without a clamp.
    """
    check_gamma(k_positive, lambda_positive, k_negative, lambda_negative)
    log_ratio, counted = _prepare(log_ratio, valid)
    advantage = _per_rollout("advantage", advantage, log_ratio)
    negative = advantage < 0
    ratio = saturating_exp(log_ratio)
    k = torch.where(negative, k_negative, k_positive).to(log_ratio.dtype)
    decay = torch.where(negative, lambda_negative, lambda_positive).to(log_ratio.dtype)
    log_power = torch.where(k > 0, k * log_ratio, 0.0)  # r^0 is 1, at r = 0 too
    return torch.where(counted, saturating_exp(log_power + decay * (1.0 - ratio)), 0.0)


def clip_picks_ratio(log_ratio: Tensor, advantage: Tensor, low: Number, high: Number, counted: Tensor) -> Tensor:
    """The ratio where min(ratio A, clip(ratio, 1 - low, 1 + high) A) picks the unclipped branch, else 0.

    This is the gradient of PPO's clipped objective as a detached weight. For A < 0 it has no upper bound.
    """
    ratio = saturating_exp(log_ratio)
    clipped = ((advantage > 0) & (ratio > 1.0 + high)) | ((advantage < 0) & (ratio < 1.0 - low))
    return torch.where(clipped | ~counted, 0.0, ratio)


def check_clip(low: Number, high: Number) -> None:
    """The half-widths of a clip range [1 - low, 1 + high]."""
    check_number("low", low, minimum=0.0, hint="The clip range is [1 - low, 1 + high].")
    check_number("high", high, minimum=0.0, hint="The clip range is [1 - low, 1 + high].")


def check_cap(cap: Number) -> float:
    """A cap on a ratio, > 0."""
    return check_number("cap", cap, strictly_above=0.0, hint="cap bounds the ratio itself: 2 is a common value.")


def check_gamma(k_positive: Number, lambda_positive: Number, k_negative: Number, lambda_negative: Number) -> None:
    """The exponents and decays of VESPO's kernel, finite and >= 0."""
    hint = "The kernel is r^k exp(lambda (1 - r))."
    check_number("k_positive", k_positive, minimum=0.0, below=math.inf, hint=hint)
    check_number("lambda_positive", lambda_positive, minimum=0.0, below=math.inf, hint=hint)
    check_number("k_negative", k_negative, minimum=0.0, below=math.inf, hint=hint)
    check_number("lambda_negative", lambda_negative, minimum=0.0, below=math.inf, hint=hint)


def _prepare(log_ratio: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
    """Detached log-ratios in the computing dtype, -inf where a rollout does not count, and that mask."""
    check_tensor("log_ratio", log_ratio, floating=True)
    counted = counted_rollouts(log_ratio, valid)
    return torch.where(counted, log_ratio.detach().to(computing_dtype(log_ratio)), -torch.inf), counted


def _per_rollout(name: str, values: Tensor, log_ratio: Tensor) -> Tensor:
    return check_shape(name, values, log_ratio.shape, "one entry per rollout").detach()
