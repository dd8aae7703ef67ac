"""Part `memory`: the most memory that an update of Qwen3-0.6B takes, with and without what saves memory.

32 x 8 rollouts of 512 tokens after prompts of 64, in micro-batches of 8,192 tokens, bf16 with an fp32 copy, AdamW. What
is measured is an update with the moments of AdamW in place, from the weights up: on CUDA the largest sum of tensors
(`peak_gb`, 1e9 bytes) and what torch had reserved for them; on a CPU the growth of resident memory.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from benchmarks.gpu_check.check import Check, NotApplicable
from benchmarks.gpu_check.sizes import Rollouts
from benchmarks.learner_memory import STATUS, forget_peak, resident
from benchmarks.random_rollouts import random_batch, random_qwen3
from gmc_core import RunConfig
from gmc_core.rollouts.policy import Policy
from gmc_core.training.learner import Learner

WHOLE = 2**20  # MiB of logits below which nothing is taken in blocks
LEAST = 12.0  # seconds of a row, about


def measure(check: Check) -> None:
    rollouts, blocks = check.size.memory, check.size.memory_logits_mib
    policy = random_qwen3(check.size.model, dtype=torch.bfloat16, device=check.device)
    check.report(
        parameters=policy.model.num_parameters(),
        rollouts=[rollouts.prompts, rollouts.group],
        response_tokens=rollouts.response,
        micro_batch_tokens=check.size.memory_micro_batch_tokens,
    )
    ways = {
        "blocks_recomputed": {"logits_mib": blocks, "gradient_checkpointing": True},
        "blocks": {"logits_mib": blocks},
        "full_logits_recomputed": {"logits_mib": WHOLE, "gradient_checkpointing": True},
        "full_logits": {"logits_mib": WHOLE},
    }
    for name, options in ways.items():
        row = partial(_update, check, policy, rollouts, options)
        check.row(name, row, least=LEAST if check.device.type == "cuda" else 0.0)


def _update(check: Check, policy: Policy, rollouts: Rollouts, options: dict[str, Any]) -> dict[str, Any]:
    config = RunConfig(
        dtype="bfloat16",
        device=check.device.type,
        optimizer="adamw",
        learning_rate=1e-8,
        prompts_per_update=rollouts.prompts,
        group_size=rollouts.group,
        max_new_tokens=rollouts.response,
        micro_batch_tokens=check.size.memory_micro_batch_tokens,
        **options,
    )
    batch, few = (
        random_batch(
            policy.model.config.vocab_size, prompts, rollouts.group, rollouts.prompt, rollouts.response,
            device=check.device,
        )
        for prompts in (rollouts.prompts, 1)
    )  # fmt: skip
    learner = Learner(policy, config)
    learner.update(few)  # makes the moments
    check.clean()
    before = _forget(check)
    seconds = check.seconds(lambda: learner.update(batch))
    return {"peak_gb": _peak(check, before), **_reserved(check), "update_s": seconds}


def _forget(check: Check) -> float:
    """Start the high-water mark anew; MiB resident now (CPU)."""
    if check.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(check.device)
        return 0.0
    if not STATUS.exists():
        raise NotApplicable("the peak of resident memory is read from /proc, which only Linux has")
    forget_peak()
    return resident("VmRSS")


def _peak(check: Check, before: float) -> float:
    if check.device.type == "cuda":
        return torch.cuda.max_memory_allocated(check.device) / 1e9
    return (resident("VmHWM") - before) * 2**20 / 1e9


def _reserved(check: Check) -> dict[str, float]:
    if check.device.type != "cuda":
        return {}
    return {"peak_reserved_gb": torch.cuda.max_memory_reserved(check.device) / 1e9}
