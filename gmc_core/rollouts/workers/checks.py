"""What is checked of an engine's output before anything is trained on it; the messages name the likely cause."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gmc_core.rollouts.continuous import ContinuousEngine, GroupRequest
from gmc_core.rollouts.trajectories import Group
from gmc_core.rollouts.workers.messages import Probe

LARGEST_LOGP = 1e-3  # a log-prob above 0 by more than rounding is none


class EngineFault(RuntimeError):
    """The engine returned what cannot be right, and would again."""


def check_group(request: GroupRequest, group: Group, versions: Sequence[int]) -> None:
    """Raise EngineFault unless `group` is a whole answer to `request`, sampled under policies among `versions`."""
    ticket, mask_GT = f"ticket {request.ticket} (policy version {versions[-1]})", group.mask_GT
    if group.size != request.group_size:
        raise EngineFault(
            f"{ticket} came back torn: {group.size} rollouts instead of {request.group_size}. Group weights need every "
            "rollout; the engine must return a group whole or not at all"
        )
    if group.prompt != request.prompt:
        raise EngineFault(
            f"{ticket} came back with prompt {group.prompt.text!r} instead of {request.prompt.text!r}: groups are "
            "mixed up. Check how the engine assigns rollouts to tickets"
        )
    length_G = mask_GT.sum(-1)
    columns_T = torch.arange(mask_GT.shape[1], device=mask_GT.device)
    whole = bool((mask_GT == (columns_T < length_G[:, None])).all())
    if not whole or int(length_G.min()) < 1 or int(length_G.max()) > request.max_new_tokens:
        raise EngineFault(
            f"{ticket} has rollouts of {length_G.tolist()} tokens{'' if whole else ' with gaps'}; expected 1 to "
            f"{request.max_new_tokens} without a gap. Check the engine's length limit and its masks"
        )
    logp_N, version_N = group.behavior_logp_GT[mask_GT], group.version_GT[mask_GT]
    wrong_N = ~torch.isfinite(logp_N) | (logp_N > LARGEST_LOGP)
    if bool(wrong_N.any()):
        raise EngineFault(
            f"{ticket}: {int(wrong_N.sum())} of {len(logp_N)} log-probs are no log-probs, the first is "
            f"{logp_N[wrong_N][0].item()}. Either the weights are broken (look at grad_norm and loss before this "
            "version; resume from the last checkpoint with a smaller step) or an update raced a running forward pass"
        )
    if bool((~torch.isin(version_N, torch.tensor(versions, device=version_N.device))).any()):
        raise EngineFault(
            f"{ticket} has tokens of policy versions {sorted(set(version_N.tolist()))}; loaded while it was generated: "
            f"{sorted(set(versions))}. Its ratios would be against the wrong policy. Check how the engine stamps "
            "versions"
        )
    falls_GT = (group.version_GT[:, 1:] < group.version_GT[:, :-1]) & mask_GT[:, 1:]
    if bool(falls_GT.any()):
        raise EngineFault(f"{ticket}: the policy version falls along a rollout. Check how the engine stamps versions")


@torch.no_grad()
def check_probe(engine: ContinuousEngine, probe: Probe, version: int) -> float:
    """Largest |difference| of the engine's log-probs to the learner's, in nats. EngineFault above the tolerance."""
    logp_T = engine.score(probe.prompt_tokens_L, probe.response_tokens_T).cpu()
    if logp_T.shape != probe.logp_T.shape:
        raise EngineFault(
            f"scored {tuple(logp_T.shape)} tokens of the probe, the learner {tuple(probe.logp_T.shape)} (policy "
            f"version {version}). Check the engine's score"
        )
    gap = (logp_T - probe.logp_T.cpu()).abs().max().item()
    if not gap <= probe.tolerance:  # a NaN is no agreement
        raise EngineFault(
            f"after loading policy version {version} its log-probs differ from the learner's by up to {gap:.3g} nats; "
            f"{probe.tolerance:.3g} is taken for rounding. The engine samples from another policy than the learner "
            "believes: weights that did not arrive whole (tied embeddings, a renamed layer), a prefix or key/value "
            "cache of the old weights, or a dtype that needs a larger tolerance"
        )
    return gap
