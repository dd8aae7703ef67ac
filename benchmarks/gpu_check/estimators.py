"""Part `estimators`: milliseconds of every rule's weights for a batch of long rollouts, beside the learner's update."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from benchmarks.gpu_check.check import Check
from gmc_core.estimators import ESTIMATORS, group_advantages, group_diagnostics, make_estimator, trajectory_log_ratio


def measure(check: Check) -> None:
    size = check.size.estimators
    shape = (size.prompts, size.group, size.response)
    generator = torch.Generator().manual_seed(0)
    behavior_PGT = -torch.rand(shape, generator=generator)
    current_PGT = behavior_PGT + 0.02 * torch.randn(shape, generator=generator)
    reward_PG = (torch.rand(shape[:2], generator=generator) < 0.5).float()
    current_PGT, behavior_PGT, reward_PG = (x.to(check.device) for x in (current_PGT, behavior_PGT, reward_PG))
    mask_PGT = torch.ones(shape, dtype=torch.bool, device=check.device)
    advantage_PG = group_advantages(reward_PG, normalization="std")
    check.report(shape=list(shape), calls=check.size.calls)
    step = (current_PGT, behavior_PGT, mask_PGT, advantage_PG)
    for name in ESTIMATORS:
        check.row(name, partial(_timed, check, partial(make_estimator(name), *step)))
    weight_PGT = make_estimator("gmc")(*step)
    log_ratio_PG = trajectory_log_ratio(*step[:3])
    diagnose = partial(group_diagnostics, log_ratio_PG, weight_PGT, epsilon=0.2, mask=mask_PGT, advantage=advantage_PG)
    check.row("diagnostics", partial(_timed, check, diagnose))


def _timed(check: Check, call: Any) -> dict[str, Any]:
    call()
    seconds = check.median_seconds(call, check.size.calls)
    update = check.found.get("learner", {}).get("two_passes_plain", {}).get("update_s")
    return {"ms": seconds * 1e3, "share_of_an_update": None if update is None else seconds / update}
