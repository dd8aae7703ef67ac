"""Part `engine`: tokens per second of the two transformers engines, and how far their log-probs are from the learner's.

Random weights end no response, so every rollout runs to its limit. The gap is what `probe_tolerance` has to bear, and
what makes ratios at staleness 0 differ from 1: learner and engine take the same numbers in batches of other shapes.
"""

from __future__ import annotations

import dataclasses
import tempfile
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_check.check import Check
from benchmarks.random_rollouts import random_qwen3
from gmc_core.rollouts.continuous import GroupRequest, generate_groups
from gmc_core.rollouts.engine import TransformersEngine
from gmc_core.rollouts.engine_spec import EngineSpec
from gmc_core.rollouts.policy import Policy
from gmc_core.rollouts.random_streams import stream_generator
from gmc_core.rollouts.tasks import Prompt, RunningSums
from gmc_core.rollouts.tiny_qwen3 import character_tokenizer
from gmc_core.rollouts.trajectories import Batch, Group
from gmc_core.training.live_config import PROBE_TOLERANCE
from gmc_core.training.rollout_log_probs import rollout_log_probs
from gmc_core.training.weight_probe import log_probs

LEAST = 20.0  # seconds of an engine, about
GAP_ROLLOUTS = 16  # at a time through the learner's path


def measure(check: Check) -> None:
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    size = check.size.engine
    policy = dataclasses.replace(
        random_qwen3(check.size.model, dtype=check.dtype, device=check.device), tokenizer=character_tokenizer()
    )
    prompts = RunningSums(size.prompt // 2).sample_prompts(size.prompts, stream_generator(0, "prompts"))
    check.report(
        parameters=policy.model.num_parameters(),
        dtype=check.size.dtype,
        rollouts=[size.prompts, size.group],
        prompt_tokens=size.prompt,
        response_tokens=size.response,
        probe_tolerance=PROBE_TOLERANCE[check.size.dtype],
    )
    least = LEAST if check.device.type == "cuda" else 0.0
    groups: list[Group] = []
    check.row("batch_engine", lambda: _batch_engine(check, policy, prompts, groups), least=least)
    if groups:
        check.row("gap_to_learner", lambda: _gap(check, policy, groups))
    check.row("continuous_engine", lambda: _continuous(check, policy, prompts), least=least)


def _batch_engine(check: Check, policy: Policy, prompts: list[Prompt], groups: list[Group]) -> dict[str, Any]:
    engine, size = TransformersEngine(policy), check.size.engine

    def generate(tokens: int, seed: int) -> None:
        groups[:] = engine.generate(
            prompts,
            group_size=size.group,
            max_new_tokens=tokens,
            temperature=1.0,
            generator=stream_generator(seed, "rollouts", 0, check.device),
        )

    generate(2, 1)
    return _rate(check.seconds(lambda: generate(size.response, 0)), groups)


def _continuous(check: Check, policy: Policy, prompts: list[Prompt]) -> dict[str, Any]:
    size = check.size.engine
    with tempfile.TemporaryDirectory() as folder:
        policy.model.save_pretrained(folder)
        policy.tokenizer.save_pretrained(folder)
        spec = EngineSpec("transformers", folder, dtype=check.size.dtype, device=check.device.type)
        engine = spec.build()
    requests = [
        GroupRequest(ticket, prompt, size.group, size.response, 1.0, ticket) for ticket, prompt in enumerate(prompts)
    ]
    generate_groups(engine, [dataclasses.replace(request, max_new_tokens=2) for request in requests])
    groups: list[Group] = []
    seconds = check.seconds(lambda: groups.extend(generate_groups(engine, requests)))
    prompt_L, response_T = groups[0].prompt_tokens_L, groups[0].response_GT[0][groups[0].mask_GT[0]]
    probe_T = (engine.score(prompt_L, response_T) - log_probs(policy, prompt_L, response_T)).abs()
    engine.close()
    return _rate(seconds, groups) | {"probe_gap_nats": probe_T.max().item()}


def _rate(seconds: float, groups: list[Group]) -> dict[str, Any]:
    tokens = sum(int(group.mask_GT.sum()) for group in groups)
    steps = max(group.response_GT.shape[1] for group in groups)
    return {"tokens": tokens, "tokens_per_second": tokens / seconds, "step_ms": seconds / steps * 1e3}


@torch.no_grad()
def _gap(check: Check, policy: Policy, groups: list[Group]) -> dict[str, Any]:
    """Behaviour log-probs against the learner's pass over the same tokens, in nats."""
    scored = [dataclasses.replace(group, reward_G=torch.zeros(group.size, device=check.device)) for group in groups]
    batch = Batch.from_groups(scored)
    P, G, _ = batch.shape
    rows_N = torch.arange(P * G, device=check.device)
    mask_NT, behavior_NT = batch.mask_PGT.flatten(0, 1), batch.behavior_logp_PGT.flatten(0, 1)
    logp_NT = torch.cat(
        [
            rollout_log_probs(policy.model, batch, part_M, 1.0, share_prefix=False)
            for part_M in rows_N.split(GAP_ROLLOUTS)
        ]
    )
    gap_NT = torch.where(mask_NT, logp_NT - behavior_NT, 0.0)
    return {
        "tokens": int(mask_NT.sum()),
        "largest_nats": gap_NT.abs().max().item(),
        "mean_nats": (gap_NT.abs().sum() / mask_NT.sum()).item(),
        "nats_of_999_in_1000": _quantile(gap_NT[mask_NT].abs(), 0.999),
        "log_ratio_std": gap_NT.sum(-1).std().item(),  # of whole rollouts, whose exact value is 0
    }


def _quantile(values_N: Tensor, share: float) -> float:
    return values_N.sort().values[min(len(values_N) - 1, int(share * len(values_N)))].item()
