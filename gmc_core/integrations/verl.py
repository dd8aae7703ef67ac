"""GMC, or any other estimator of the menu, inside verl: the weights, the loss, and what must be set for them.

verl's loss sees micro-batches without group labels. So the weights are made at verl's advantage stage, on the driver,
where `uid` and both log-probs of the whole batch lie together, and travel to the actors as verl's own
`rollout_is_weights`, with which every policy loss of verl multiplies its tokens. Two modules put them there:
`verl_trainers` (the V1 trainers, also the asynchronous ones) and `verl_fully_async` (the experimental recipe of that
name); docs/verl.md has a configuration for each. Several nodes are verl's affair: nothing here knows of them.

What the ratio of a rollout is. Denominator: the log-probs that the sampler reports (`rollout_log_probs`). Numerator:
verl's `old_log_probs`, of the policy named by `trainer.gmc.weights_at`:

    "optimizer_step" (default)  the policy that is about to be updated. The advantage stage must then serve exactly one
        optimiser step, which is checked. With the loss `gmc_surrogate` the gradient is w A grad log pi, that of
        `gmc_core.train`. verl's trainers with separate samplers would take old log-probs from the policy at the last
        synchronisation of weights, swapping weights for it; this leaves the swap out.
    "old_policy"  verl's own choice, for any number of optimiser steps: w = pi_old / b, by whole groups, equal to the
        other only where the policy has not moved since. The rest, pi / pi_old, is left to the clipped token ratio of
        the loss `vanilla`, which multiplies by w; no group is capped in it.

Rollouts that have no ratio (masked as a whole, verl's padding, a log-prob missing or not finite) are left out of their
group and get weight 0; they still count in verl's baseline and normaliser. A KL term and an entropy bonus are not
weighted.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gmc_core.estimators import Estimator, make_estimator
from gmc_core.estimators.checks import as_mask, check_choice, computing_dtype
from gmc_core.integrations.gathered_groups import gathered_weights
from gmc_core.integrations.versions import check_version

INSTALL = "pip install 'verl[verl-core]==0.9.1'"
READ_IN = "0.9.1"
check_version("verl", (0, 9), (0, 10), INSTALL)

from verl.trainer.ppo.core_algos import agg_loss, register_policy_loss  # noqa: E402  (only once the version is known)

LOSS = "gmc_surrogate"
WEIGHTS_AT = {  # -> the losses with which the gradient is what the module's docstring says
    "optimizer_step": (LOSS, "vanilla"),
    "old_policy": ("vanilla",),
}
SETTINGS = ("estimator", "estimator_options", "weights_at")


@dataclass(frozen=True)
class Weighting:
    """The section `trainer.gmc` of a verl config: which weights, and of which policy."""

    estimator: Estimator
    weights_at: str = "optimizer_step"

    @classmethod
    def of(cls, config: Any) -> Weighting:
        """Read `trainer.gmc`: `estimator` (a name of ESTIMATORS, "gmc"), `estimator_options` ({}) and `weights_at`.

        Raises: ValueError, TypeError: an unknown key, estimator, option or value.
        """
        section = config.trainer.get("gmc") or {}
        for name in section:
            check_choice("setting of trainer.gmc", name, SETTINGS)
        estimator = make_estimator(section.get("estimator", "gmc"), **(section.get("estimator_options") or {}))
        weights_at = check_choice("trainer.gmc.weights_at", section.get("weights_at", "optimizer_step"), WEIGHTS_AT)
        return cls(estimator, weights_at)


def check_config(config: Any, weighting: Weighting, optimizer_steps: int | float) -> None:
    """ValueError for a verl config under which the weights would not mean what they say.

    `optimizer_steps`: how many the actor takes on the rollouts of one advantage stage.
    """
    correction = config.algorithm.get("rollout_correction") or {}
    for name in ("bypass_mode", "rollout_is", "rollout_rs"):
        if correction.get(name):
            raise ValueError(
                f"algorithm.rollout_correction.{name} is {correction[name]!r}. The estimator is the correction here, "
                "and a second one (or, in bypass mode, old log-probs copied from the sampler) would spoil it. Set "
                "bypass_mode=False, rollout_is=null, rollout_rs=null"
            )
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    loss, losses = actor.policy_loss.loss_mode, WEIGHTS_AT[weighting.weights_at]
    if loss not in losses:
        raise ValueError(
            f"actor_rollout_ref.actor.policy_loss.loss_mode is {loss!r}, but trainer.gmc.weights_at="
            f"{weighting.weights_at!r} goes with {' or '.join(losses)}: {LOSS} ignores what has changed since the old "
            "policy, and the others correct by a rule of their own (name it as trainer.gmc.estimator if you want it)"
        )
    if weighting.weights_at == "optimizer_step" and optimizer_steps != 1:
        raise ValueError(
            f"weights of the policy that is updated need one optimiser step per advantage stage; this config takes "
            f"{optimizer_steps:g}. Let ppo_mini_batch_size be the prompts of a stage and ppo_epochs 1, or set "
            "trainer.gmc.weights_at=old_policy and loss_mode=vanilla"
        )
    if not rollout.calculate_log_probs:
        raise ValueError("the sampler's log-probs are missing: set actor_rollout_ref.rollout.calculate_log_probs=True")
    if rollout.top_p != 1 or rollout.top_k not in (-1, 0):
        raise ValueError(
            f"top_p={rollout.top_p} and top_k={rollout.top_k} change what is sampled from, and the sampler reports "
            "log-probs of that; verl's old log-probs are of the whole distribution, so every ratio would be off. Set "
            "actor_rollout_ref.rollout.top_p=1 and top_k=-1"
        )
    if rollout.name == "vllm" and rollout.logprobs_mode != "processed_logprobs":
        raise ValueError(
            f"actor_rollout_ref.rollout.logprobs_mode is {rollout.logprobs_mode!r}: log-probs before temperature. verl "
            "divides by the temperature, so must the sampler: set it to processed_logprobs"
        )


class _Driver:
    """verl's driver holds the whole batch: for `gathered_weights` it is the only process."""

    process_index = 0

    def gather(self, tensor: Tensor) -> Tensor:
        return tensor

    def pad_across_processes(self, tensor: Tensor, dim: int = 0, pad_index: int = 0) -> Tensor:
        return tensor


def rollout_weights(
    estimator: Estimator,
    old_log_probs_NT: Tensor,
    rollout_log_probs_NT: Tensor,
    response_mask_NT: Tensor,
    advantages_NT: Tensor,
    uid_N: Sequence[Hashable],
    session_N: Sequence[Hashable] | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """`rollout_is_weights` of a whole batch of verl in any order, and its diagnostics.

    Args:
        old_log_probs_NT, rollout_log_probs_NT, response_mask_NT, advantages_NT: as verl's advantage stage has them,
            (N, T). Rules that look at the advantage are given its mean over a rollout's response tokens; outcome
            advantages (GRPO, RLOO) are equal on all of them.
        uid_N: labels of the N rows' prompts: rows of one label are a group.
        session_N: labels of rollouts, when an agent's rollout may be several rows: its ratio is then the product over
            its rows, and it counts once in its group. One row is one rollout by default.
    Returns:
        weight_NT, detached, 0 outside the mask and for rollouts without a ratio; `estimator/...` -> a number, as named
        in `gmc_core.estimators.METRICS`.
    """
    N, T = response_mask_NT.shape
    session = _numbered(range(N) if session_N is None else session_N)
    uid = _numbered(uid_N)
    if not len(session) == len(uid) == N:
        raise ValueError(f"{len(uid)} uids and {len(session)} sessions for {N} rows; expected one of each per row")
    part, count = [], [0] * (max(session) + 1)
    for label in session:  # which row of its session a row is
        part.append(count[label])
        count[label] += 1
    row = (torch.tensor(session, dtype=torch.long), torch.tensor(part, dtype=torch.long))
    shape = (len(count), max(count), T)

    def joined(values_NT: Tensor) -> Tensor:
        """(S, parts T): the rows of a session one after another."""
        values = values_NT.new_zeros(shape)
        values[row] = values_NT.detach()
        return values.flatten(1)

    mask = joined(as_mask("response_mask_NT", response_mask_NT))
    group = torch.zeros(len(count), dtype=torch.long)
    group[row[0]] = torch.tensor(uid, dtype=torch.long)
    advantage = torch.where(mask, joined(advantages_NT), 0.0).sum(-1) / mask.sum(-1).clamp_min(1)
    weight, diagnostics = gathered_weights(
        estimator,
        _Driver(),
        joined(old_log_probs_NT.float()),
        joined(rollout_log_probs_NT.float()),
        mask,
        advantage,
        group.to(mask.device),
    )
    weight = torch.where(mask, weight if weight.dim() == 2 else weight.unsqueeze(-1), 0.0)
    return weight.view(shape)[row], {f"estimator/{name}": value for name, value in diagnostics.items()}


def _numbered(labels: Sequence[Hashable]) -> list[int]:
    """Labels as integers from 0, in the order in which they first come."""
    known: dict[Hashable, int] = {}
    return [known.setdefault(label, len(known)) for label in labels]


@register_policy_loss(LOSS)
def gmc_surrogate_loss(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, Any]]:
    """verl's policy loss `gmc_surrogate`: - A sg(w) log pi per token, summed and normalised by verl's `loss_agg_mode`.

    Arguments as verl passes them, all (N, T). No ratio to the old policy enters: `actor/ppo_kl`, verl's estimate of how
    far the policy has moved from it, should stay near 0 (docs/verl.md). Tokens that are masked, of weight 0 or of
    advantage 0 contribute exactly 0, whatever their log-prob.
    Raises: ValueError without weights: they come from the trainers of `gmc_core.integrations`.
    """
    if rollout_is_weights is None:
        raise ValueError(
            f"loss_mode={LOSS} got no rollout_is_weights: they are made by the trainers of "
            "gmc_core.integrations.verl_trainers (trainer.v1.trainer_mode=gmc_separate_async and so on) and "
            "gmc_core.integrations.verl_fully_async, not by verl's own"
        )
    dtype = computing_dtype(log_prob)
    mask = as_mask("response_mask", response_mask)
    coefficient = (advantages.to(dtype) * rollout_is_weights.to(dtype)).detach()
    used = mask & (coefficient != 0)
    loss_NT = -torch.where(used, coefficient, 0.0) * torch.where(used, log_prob.to(dtype), 0.0)
    info = {} if config is None else config.global_batch_info
    loss = agg_loss(loss_mat=loss_NT, loss_mask=mask, loss_agg_mode=loss_agg_mode, **info)
    moved = torch.where(mask, old_log_prob.to(dtype) - log_prob.detach().to(dtype), 0.0)
    return loss, {"actor/ppo_kl": (moved.sum() / mask.sum().clamp_min(1)).item()}
