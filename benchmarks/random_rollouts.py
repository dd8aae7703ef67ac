"""A Qwen3 with random weights and rollouts of random tokens: enough to measure what an update costs, without a hub."""

from __future__ import annotations

import math
from typing import Any

import torch

from gmc_core.rollouts.policy import Policy
from gmc_core.rollouts.trajectories import Batch


def random_qwen3(shape: dict[str, Any], *, dtype: torch.dtype, device: torch.device | str = "cpu") -> Policy:
    """A policy without a tokenizer. `shape`: arguments of `Qwen3Config`; the weights are made on `device`."""
    from transformers import AutoModelForCausalLM, GenerationConfig, Qwen3Config

    torch.manual_seed(0)
    with torch.device(device):
        # from_config, not .to(dtype): that would round the buffers of the rotary embedding as well
        model = AutoModelForCausalLM.from_config(Qwen3Config(**shape), dtype=dtype)
    model.generation_config = GenerationConfig(eos_token_id=1, pad_token_id=0)
    return Policy(model.eval(), None, (1,), "")


def random_batch(
    vocabulary: int, prompts: int, group: int, prompt: int, response: int, *, device: torch.device | str = "cpu"
) -> Batch:
    """`prompts` x `group` rollouts of equal lengths (tokens), every second one rewarded, sampled nearly uniformly."""
    generator, shape = torch.Generator().manual_seed(0), (prompts, group, response)
    batch = {
        "prompt_PL": torch.randint(vocabulary, (prompts, prompt), generator=generator),
        "prompt_mask_PL": torch.ones(prompts, prompt, dtype=torch.bool),
        "response_PGT": torch.randint(vocabulary, shape, generator=generator),
        "mask_PGT": torch.ones(shape, dtype=torch.bool),
        "behavior_logp_PGT": torch.full(shape, -math.log(vocabulary)),
        "version_PGT": torch.zeros(shape, dtype=torch.long),
        "finished_PG": torch.ones(shape[:2], dtype=torch.bool),
        "reward_PG": (torch.arange(group) % 2).float().expand(prompts, group),
        "valid_PG": torch.ones(shape[:2], dtype=torch.bool),
    }
    return Batch(**{name: value.to(device) for name, value in batch.items()})
