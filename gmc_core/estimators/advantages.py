"""Group-relative advantages: what each rollout earned beyond its group."""

import torch
from torch import Tensor

from gmc_core.estimators.checks import as_mask, check_choice, check_shape, check_tensor, computing_dtype
from gmc_core.estimators.groups import GroupLayout
from gmc_core.typing import Float, Int, Shaped

NORMALIZATIONS = ("center", "leave_one_out", "std", "length_corrected")
# Keeps the std-normalised advantage finite; it matters only where rewards differ by about as little.
STD_FLOOR = 1e-6


def group_advantages(
    reward: Shaped[Tensor, "..."],
    *,
    normalization: str = "center",
    lengths: Shaped[Tensor, "..."] | None = None,
    group_index: Int[Tensor, "..."] | None = None,
    valid: Shaped[Tensor, "..."] | None = None,
) -> Float[Tensor, "..."]:
    """A_i from the rewards R of a group of G valid rollouts.

    center            A = R - mean R. Expected gradient (1 - 1/G) grad J, on stale data too. The default.
    leave_one_out     A = G/(G-1) (R - mean R) = R minus the mean of the others: unbiased.
    std               A = (R - mean R) / (std R + 1e-6), std of the population (divided by G). GRPO's. It adds an error
                      of first order in the delay, and max |A| = sqrt(G - 1) breaks the common second-moment guarantee.
    length_corrected  A = R/|y| - mean(R/|y|), with `lengths` |y| in tokens: early TIC-GRPO.
    Statements on bias and second moment: our reconstruction, docs/theory.md section 7.

    Args:
        reward: (..., G) with the group last, or flat (N,) with integer labels `group_index` (N,). Any real dtype.
        lengths: response tokens per rollout, > 0; required by, and only by, length_corrected.
        valid: rollouts that take part: the others are left out of mean, std and G, and get 0 (their reward may be NaN).
    Returns:
        float32 (float64 for float64 rewards), the shape of `reward`; exactly 0 in a group of one valid rollout or of
        equal rewards.
    Raises:
        ValueError: unknown normalisation, shapes that do not fit, a reward of a valid rollout that is not finite.
    """
    check_choice("normalization", normalization, NORMALIZATIONS)
    check_tensor("reward", reward)
    layout = GroupLayout(reward.shape, group_index, what="reward")
    if valid is None:
        valid = torch.ones_like(reward, dtype=torch.bool)
    else:
        valid = as_mask("valid", check_shape("valid", valid, reward.shape, "one entry per rollout"))
    gain = torch.where(valid, reward.detach().to(computing_dtype(reward)), 0.0)
    if not bool(torch.isfinite(gain).all()):
        raise ValueError("reward is NaN or infinite for a valid rollout; mark rollouts without a reward valid=False.")
    if normalization == "length_corrected":
        gain = gain / _lengths(lengths, reward, valid)
    elif lengths is not None:
        raise ValueError(f"lengths only matter to normalization='length_corrected', got {normalization!r}; drop them.")

    gain, valid = layout.pack(gain, 0.0), layout.pack(valid, False)
    count = valid.sum(-1, keepdim=True)
    if gain.shape[-1] == 0:
        return layout.unpack(gain)
    # Rewards are taken relative to one of the group first: rounding cannot then give equal rewards an advantage.
    lowest = torch.where(valid, gain, torch.inf).amin(-1, keepdim=True)
    gain = torch.where(valid, gain - lowest, 0.0)
    centered = torch.where(valid, gain - gain.sum(-1, keepdim=True) / count.clamp_min(1), 0.0)
    if normalization == "leave_one_out":
        centered = centered * count / (count - 1).clamp_min(1)
    elif normalization == "std":
        variance = centered.square().sum(-1, keepdim=True) / count.clamp_min(1)
        centered = centered / (variance.sqrt() + STD_FLOOR)
    return layout.unpack(centered)


def _lengths(lengths: Tensor | None, reward: Tensor, valid: Tensor) -> Tensor:
    if lengths is None:
        raise ValueError("normalization='length_corrected' divides by the response length: pass lengths (in tokens).")
    check_shape("lengths", lengths, reward.shape, "one length per rollout")
    if bool((valid & ~(lengths > 0)).any()):
        raise ValueError("lengths must be > 0 for valid rollouts; mark empty responses valid=False.")
    return torch.where(valid, lengths, 1)
