"""Weights of groups whose rollouts lie on several processes, in any order, in batches of different width."""

from typing import Protocol

import torch
from torch import Tensor

from gmc_core.estimators import Estimator, group_diagnostics, trajectory_log_ratio
from gmc_core.typing import Float, Int, Shaped


class Processes(Protocol):
    """What is used of `accelerate.Accelerator`."""

    process_index: int

    def gather(self, tensor: Tensor) -> Tensor: ...

    def pad_across_processes(self, tensor: Tensor, dim: int = 0, pad_index: int = 0) -> Tensor: ...


def gathered_weights(
    estimator: Estimator,
    processes: Processes,
    logp_current_NT: Float[Tensor, "..."],
    logp_behavior_NT: Float[Tensor, "..."],
    mask_NT: Shaped[Tensor, "..."],
    advantage_N: Float[Tensor, "..."],
    group_N: Int[Tensor, "..."],
) -> tuple[Tensor, dict[str, float]]:
    """Weights of this process's N rollouts with the whole of their groups in view, and diagnostics over all processes.

    Log-probs and mask are (N, T), advantage and group (N,). Every process calls it at the same time with the same N; T
    may differ. `group_N` are labels that mean the same everywhere. All log-probs are gathered: N T numbers of every
    process, three times, on each.

    Returns:
        weight (N,) for a rule per trajectory, (N, T) for one per token, detached; rollouts that have no ratio (no
        response token under the mask, a log-prob missing or not finite) have weight 0 and are left out of their group.
    """

    def everywhere(local_NT: Tensor) -> Tensor:
        return processes.gather(processes.pad_across_processes(local_NT.detach().contiguous(), dim=1))

    N, T = mask_NT.shape
    mask = everywhere(mask_NT.to(torch.int32)).bool()
    current, behavior = everywhere(logp_current_NT), everywhere(logp_behavior_NT)
    advantage, group = processes.gather(advantage_N.detach().contiguous()), processes.gather(group_N.contiguous())
    weight = estimator(current, behavior, mask, advantage, group_index=group)
    diagnostics = group_diagnostics(
        trajectory_log_ratio(current, behavior, mask),
        weight,
        epsilon=getattr(estimator, "epsilon", 0.2),
        group_index=group,
        advantage=advantage,
        mask=mask,
        valid=mask.any(-1),  # a rollout that was masked on purpose is not one that was lost
    )
    own = slice(processes.process_index * N, (processes.process_index + 1) * N)
    weight = weight[own, :T]
    if estimator.level == "trajectory":
        weight = weight.amax(-1)  # equal on every response token, 0 elsewhere
    return weight, {name: value.item() for name, value in diagnostics.items()}
