"""From sampled tokens to rewards, and the evaluation that is nothing else than that."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch.nn.functional import pad

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


def pass_at_k(correct: int, samples: int, k: int) -> float:
    """Unbiased estimate of the chance that at least one of k fresh samples is right, from `correct` of `samples`.

    1 - C(samples - correct, k) / C(samples, k) (Chen et al. 2021, arXiv 2107.03374), in exact integers. At k = 1 it is
    the share of right samples. ValueError unless 1 <= k <= samples and 0 <= correct <= samples.
    """
    if not 1 <= k <= samples or not 0 <= correct <= samples:
        raise ValueError(
            f"pass_at_k got correct={correct}, samples={samples}, k={k}; expected 0 <= correct <= samples and "
            "1 <= k <= samples"
        )
    return 1 - math.comb(samples - correct, k) / math.comb(samples, k)


@dataclass(frozen=True)
class Evaluation:
    """`accuracy`: the mean reward over `prompts` x `samples` responses; `rewards_PG`: each of them.

    A response that the engine did not deliver is a failure: it has reward 0, stays in the denominators and is counted
    in `missing`; a prompt without any comes last in `rewards_PG`. `response_length` and `truncated_fraction` are over
    the delivered ones.
    """

    accuracy: float
    prompts: int
    samples: int
    response_length: float
    truncated_fraction: float
    rewards_PG: torch.Tensor
    missing: int = 0

    def pass_at(self, k: int) -> float:
        """pass@k, mean over prompts; a response is right if its reward is positive. ValueError unless k <= samples."""
        correct_P = (self.rewards_PG > 0).sum(-1).tolist()
        return sum(pass_at_k(correct, self.samples, k) for correct in correct_P) / self.prompts


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
    score: Callable[[Sequence[Group]], list[Group]] | None = None,
) -> Evaluation:
    """Sample `samples` responses to every prompt with the engine's current policy and score them.

    `temperature` 0 is greedy decoding. `score` gives groups their rewards (default: the task's verifier, here and now).
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
    if not groups:
        raise RuntimeError(f"the engine delivered nothing for {len(prompts)} prompts")
    scored = score_groups(groups, task, tokenizer) if score is None else score(groups)
    missing = len(prompts) * samples - sum(group.size for group in scored)
    rows = [group.reward_G for group in scored]
    rows += [rows[0].new_zeros(0)] * (len(prompts) - len(rows))
    rewards_PG = torch.stack([pad(row, (0, samples - len(row))) for row in rows] if missing else rows)
    return Evaluation(
        accuracy=rewards_PG.mean().item(),
        prompts=len(prompts),
        samples=samples,
        response_length=torch.cat([group.mask_GT.sum(-1).float() for group in groups]).mean().item(),
        truncated_fraction=1.0 - torch.cat([group.finished_G.float() for group in groups]).mean().item(),
        rewards_PG=rewards_PG,
        missing=missing,
    )
