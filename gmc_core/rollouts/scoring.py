"""From sampled tokens to rewards, and the evaluation that is nothing else than that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from gmc_core.rollouts.engine import RolloutEngine
from gmc_core.rollouts.tasks import Prompt, Task
from gmc_core.rollouts.trajectories import Group


def response_texts(tokenizer, group: Group) -> list[str]:
    """The text of every rollout, without special tokens."""
    rows = [row[mask].tolist() for row, mask in zip(group.response_GT, group.mask_GT, strict=True)]
    return tokenizer.batch_decode(rows, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def score_groups(groups: Sequence[Group], task: Task, tokenizer) -> list[Group]:
    """The same groups with `reward_G` set by the task's verifier."""
    scored = []
    for group in groups:
        texts = response_texts(tokenizer, group)
        finished = group.finished_G.tolist()
        rewards = [task.reward(group.prompt, text, done) for text, done in zip(texts, finished, strict=True)]
        scored.append(replace(group, reward_G=torch.tensor(rewards, dtype=torch.float32, device=group.mask_GT.device)))
    return scored


@dataclass(frozen=True)
class Evaluation:
    """`accuracy`: the mean reward over `prompts` x `samples` responses; `rewards_PG`: each of them."""

    accuracy: float
    prompts: int
    samples: int
    response_length: float
    truncated_fraction: float
    rewards_PG: torch.Tensor


def evaluate(
    engine: RolloutEngine,
    tokenizer,
    task: Task,
    prompts: Sequence[Prompt],
    *,
    generator: torch.Generator,
    samples: int = 1,
    temperature: float = 1.0,
    max_new_tokens: int | None = None,
) -> Evaluation:
    """Sample `samples` responses to every prompt with the engine's current policy and score them.

    ValueError for no prompts or samples < 1.
    """
    if not prompts or samples < 1:
        raise ValueError(f"evaluate got {len(prompts)} prompts and samples={samples}; both must be at least 1")
    groups = engine.generate(
        prompts,
        group_size=samples,
        max_new_tokens=max_new_tokens or task.max_response_tokens,
        temperature=temperature,
        generator=generator,
    )
    scored = score_groups(groups, task, tokenizer)
    rewards_PG = torch.stack([group.reward_G for group in scored])
    return Evaluation(
        accuracy=rewards_PG.mean().item(),
        prompts=len(prompts),
        samples=samples,
        response_length=torch.stack([group.mask_GT.sum(-1).float() for group in groups]).mean().item(),
        truncated_fraction=1.0 - torch.stack([group.finished_G.float() for group in groups]).mean().item(),
        rewards_PG=rewards_PG,
    )
