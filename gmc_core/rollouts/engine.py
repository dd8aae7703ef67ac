"""Rollout engines: they sample groups and say, for every token, its log-prob and the version of the policy behind it.

`RolloutEngine` is the protocol; `TransformersEngine` runs anywhere transformers does. The cache holds each prompt once
until its prefill is done, then G copies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from gmc_core.rollouts.policy import Policy, load_snapshot
from gmc_core.rollouts.tasks import Prompt
from gmc_core.rollouts.trajectories import Group


@runtime_checkable
class RolloutEngine(Protocol):
    """What the schedules need of an engine."""

    policy_version: int

    def update_weights(self, weights: Mapping[str, Tensor], policy_version: int) -> None:
        """Sample from these weights from now on."""
        ...

    def generate(
        self,
        prompts: Sequence[Prompt],
        *,
        group_size: int,
        max_new_tokens: int,
        temperature: float,
        generator: torch.Generator,
    ) -> list[Group]:
        """`group_size` rollouts of every prompt, without rewards."""
        ...


class TransformersEngine:
    """Samples with a transformers model of its own: one prefill per prompt, then a step per token for all rollouts."""

    def __init__(self, policy: Policy, policy_version: int = 0) -> None:
        self.policy = policy
        self.policy_version = policy_version

    def update_weights(self, weights: Mapping[str, Tensor], policy_version: int) -> None:
        load_snapshot(self.policy.model, weights)
        self.policy_version = policy_version

    def tokenize(self, prompts: Sequence[Prompt]) -> list[Tensor]:
        encoded = self.policy.tokenizer([prompt.text for prompt in prompts], add_special_tokens=False)["input_ids"]
        for prompt, ids in zip(prompts, encoded, strict=True):
            if not ids:
                raise ValueError(
                    f"prompt {prompt.text!r} has no tokens under this model's tokenizer; give it some text"
                )
        return [torch.tensor(ids, device=self.policy.device) for ids in encoded]

    @torch.no_grad()
    def generate(
        self,
        prompts: Sequence[Prompt],
        *,
        group_size: int,
        max_new_tokens: int,
        temperature: float,
        generator: torch.Generator,
    ) -> list[Group]:
        model, device = self.policy.model, self.policy.device
        tokens_per_prompt = self.tokenize(prompts)
        P, L = len(prompts), max(ids.numel() for ids in tokens_per_prompt)
        N = P * group_size
        prompt_PL = torch.zeros((P, L), dtype=torch.long, device=device)
        mask_PL = torch.zeros((P, L), dtype=torch.long, device=device)
        for p, ids in enumerate(tokens_per_prompt):
            prompt_PL[p, L - ids.numel() :] = ids
            mask_PL[p, L - ids.numel() :] = 1
        padded = not bool(mask_PL.all())
        extra = {"attention_mask": mask_PL, "position_ids": (mask_PL.cumsum(-1) - 1).clamp_min(0)} if padded else {}
        out = model(input_ids=prompt_PL, use_cache=True, logits_to_keep=1, **extra)
        cache = out.past_key_values
        cache.batch_repeat_interleave(group_size)
        logits_NV = out.logits[:, -1].repeat_interleave(group_size, dim=0)
        if padded:
            mask_NL = mask_PL.repeat_interleave(group_size, dim=0)
            position_N1 = mask_NL.sum(-1, keepdim=True)

        response_NT = torch.zeros((N, max_new_tokens), dtype=torch.long, device=device)
        logp_NT = torch.zeros((N, max_new_tokens), dtype=torch.float32, device=device)
        mask_NT = torch.zeros((N, max_new_tokens), dtype=torch.bool, device=device)
        alive_N = torch.ones(N, dtype=torch.bool, device=device)
        eos = torch.tensor(self.policy.eos_ids, device=device)
        for t in range(max_new_tokens):
            token_N, token_logp_N = sample_tokens(logits_NV, temperature, generator)
            response_NT[:, t], logp_NT[:, t], mask_NT[:, t] = token_N, token_logp_N, alive_N
            alive_N = alive_N & ~torch.isin(token_N, eos)
            if t + 1 == max_new_tokens or not bool(alive_N.any()):
                break
            if padded:
                mask_NL = torch.cat([mask_NL, mask_NL.new_ones((N, 1))], dim=-1)
                extra = {"attention_mask": mask_NL, "position_ids": position_N1 + t}
            logits_NV = model(input_ids=token_N[:, None], past_key_values=cache, use_cache=True, **extra).logits[:, -1]

        version_NT = torch.full((N, max_new_tokens), self.policy_version, dtype=torch.long, device=device)
        groups = []
        for p, prompt in enumerate(prompts):
            rows = slice(p * group_size, (p + 1) * group_size)
            groups.append(
                Group(
                    prompt=prompt,
                    prompt_tokens_L=tokens_per_prompt[p],
                    response_GT=response_NT[rows],
                    mask_GT=mask_NT[rows],
                    behavior_logp_GT=logp_NT[rows],
                    version_GT=version_NT[rows],
                    finished_G=~alive_N[rows],
                )
            )
        return groups


def sample_tokens(logits_NV: Tensor, temperature: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """One token per row of softmax(logits / temperature), and its fp32 log-prob under that very distribution."""
    logp_NV = torch.log_softmax(logits_NV.float() / temperature, dim=-1)
    token_N = torch.multinomial(logp_NV.exp(), 1, generator=generator)
    return token_N.squeeze(-1), logp_NV.gather(-1, token_N).squeeze(-1)
