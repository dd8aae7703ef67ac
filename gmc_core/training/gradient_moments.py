"""Bias, variance and direction of a gradient estimator from samples, without the noise of either side.

Every squared norm and inner product below is a mean over pairs of *independent* gradients, so its expectation is the
quantity itself: noise in the estimates adds scatter, never a positive offset. Such an estimate of a squared norm can
come out negative when the truth is near 0.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def gradient_moments(stale_SKD: Tensor, fresh_SJD: Tensor) -> dict[str, float]:
    """Compare the gradients of an estimator with those that fresh rollouts give.

    Args:
        stale_SKD: for each of S sets of prompts, K independent gradients of one update (same prompts, other rollouts).
        fresh_SJD: likewise J gradients of the update without delay on the same prompts. K, J >= 2, S >= 2.
    Returns, with m the mean of the estimator's gradient over its rollouts and m* that of the fresh one, both at these
    prompts and averaged over the sets, n_s, m_s, m*_s the gradient, m and m* of one set:
        bias_squared        |m - m*|^2
        norm_squared        |m|^2;   fresh_norm_squared  |m*|^2
        signal              <m, m*> / |m*|^2: the share of the fresh gradient that is kept, a step size
        cosine              <m, m*> / (|m| |m*|): the direction, whatever the length
        variance            mean over sets of E |n_s - m_s|^2: of one update, from its rollouts
        mean_squared_error  mean over sets of E |n_s - m*_s|^2: of one update
        update_cosine       mean_s <m_s, m*_s> / sqrt(mean_s E |n_s|^2 . mean_s |m*_s|^2): of one update
    and `<name>_error`, the jackknife standard error over the sets. Squares are in (units of the loss's gradient)^2; NaN
    where a root or quotient is taken of an estimate that is not positive.
    Raises: ValueError for fewer than two sets or two gradients in a set.
    """
    for name, value in (("stale_SKD", stale_SKD), ("fresh_SJD", fresh_SJD)):
        if value.dim() != 3 or min(value.shape[:2]) < 2:
            raise ValueError(
                f"{name} has shape {tuple(value.shape)}; expected (sets, gradients, parameters) with at least two sets "
                "and two gradients in each: independent pairs are what removes the noise"
            )
    if stale_SKD.shape[0] != fresh_SJD.shape[0] or stale_SKD.shape[2] != fresh_SJD.shape[2]:
        raise ValueError(
            f"stale_SKD {tuple(stale_SKD.shape)} and fresh_SJD {tuple(fresh_SJD.shape)} must agree in sets and in "
            "parameters"
        )
    stale, fresh = stale_SKD.double(), fresh_SJD.double()
    own = _pair_means(stale, stale, independent=False)
    cross = _pair_means(stale, fresh, independent=True)
    target = _pair_means(fresh, fresh, independent=False)
    square = stale.square().sum(-1).mean(-1)
    whole = _moments(own, cross, target, square)
    S = len(square)
    left_out = []
    for s in range(S):
        keep = torch.arange(S) != s
        left_out.append(_moments(*(pairs[keep][:, keep] for pairs in (own, cross, target)), square[keep]))
    errors = {}
    for name in whole:
        values = torch.tensor([part[name] for part in left_out], dtype=torch.float64)
        errors[f"{name}_error"] = math.sqrt((S - 1) * (values - values.mean()).square().mean().item())
    return whole | errors


def _pair_means(left_SKD: Tensor, right_SJD: Tensor, *, independent: bool) -> Tensor:
    """(S, S): mean inner product of a gradient of set s with one of set s', never of a gradient with itself."""
    S, K, D = left_SKD.shape
    J = right_SJD.shape[1]
    gram = (left_SKD.reshape(S * K, D) @ right_SJD.reshape(S * J, D).T).view(S, K, S, J)
    means = gram.mean((1, 3))
    if not independent:
        for s in range(S):
            block = gram[s, :, s, :]
            means[s, s] = (block.sum() - block.trace()) / (K * (K - 1))
    return means


def _moments(own: Tensor, cross: Tensor, target: Tensor, square: Tensor) -> dict[str, float]:
    norm, inner, fresh = own.mean().item(), cross.mean().item(), target.mean().item()
    set_norm, set_inner, set_fresh = (pairs.diagonal().mean().item() for pairs in (own, cross, target))
    total = square.mean().item()
    return {
        "bias_squared": norm - 2 * inner + fresh,
        "norm_squared": norm,
        "fresh_norm_squared": fresh,
        "signal": inner / fresh if fresh > 0 else math.nan,
        "cosine": inner / math.sqrt(norm * fresh) if norm > 0 and fresh > 0 else math.nan,
        "variance": total - set_norm,
        "mean_squared_error": total - 2 * set_inner + set_fresh,
        "update_cosine": set_inner / math.sqrt(total * set_fresh) if set_fresh > 0 and total > 0 else math.nan,
    }
