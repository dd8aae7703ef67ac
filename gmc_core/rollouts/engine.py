"""Rollout engines: they sample groups and say, for every token, its log-prob and the version of the policy behind it.

`RolloutEngine` is the protocol; `TransformersEngine` runs anywhere transformers does. It runs the model once per
distinct prefix: one prefill per prompt, and rollouts share their work for as long as they have sampled the same tokens.
Each rollout still draws its own tokens, so the samples are independent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from gmc_core.rollouts.policy import Policy, load_snapshot
from gmc_core.rollouts.prompt_encoding import PromptEncoder
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
        """`group_size` rollouts of every prompt, without rewards. `temperature` 0 is greedy decoding."""
        ...


class TransformersEngine:
    """Samples with a transformers model of its own, whose weights `update_weights` replaces.

    `encode` turns a prompt into token ids (default: its text, without special tokens).
    """

    def __init__(self, policy: Policy, policy_version: int = 0, encode: PromptEncoder | None = None) -> None:
        self.policy = policy
        self.policy_version = policy_version
        self.encode = encode or PromptEncoder(policy.tokenizer)

    def update_weights(self, weights: Mapping[str, Tensor], policy_version: int) -> None:
        load_snapshot(self.policy.model, weights)
        self.policy_version = policy_version

    def tokenize(self, prompts: Sequence[Prompt]) -> list[Tensor]:
        return [torch.tensor(self.encode(prompt), device=self.policy.device) for prompt in prompts]

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
        mask_KL = torch.zeros((P, L), dtype=torch.long, device=device)
        for p, ids in enumerate(tokens_per_prompt):
            prompt_PL[p, L - ids.numel() :] = ids
            mask_KL[p, L - ids.numel() :] = 1
        padded = not bool(mask_KL.all())
        extra = {"attention_mask": mask_KL, "position_ids": (mask_KL.cumsum(-1) - 1).clamp_min(0)} if padded else {}
        out = model(input_ids=prompt_PL, use_cache=True, logits_to_keep=1, **extra)
        cache, logits_KV = out.past_key_values, out.logits[:, -1]

        response_NT = torch.zeros((N, max_new_tokens), dtype=torch.long, device=device)
        logp_NT = torch.zeros((N, max_new_tokens), dtype=torch.float32, device=device)
        mask_NT = torch.zeros((N, max_new_tokens), dtype=torch.bool, device=device)
        alive_N = torch.ones(N, dtype=torch.bool, device=device)
        node_N = torch.arange(P, device=device).repeat_interleave(group_size)  # the distinct prefix behind each rollout
        eos = torch.tensor(self.policy.eos_ids, device=device)
        for t in range(max_new_tokens):
            token_N, token_logp_N = sample_tokens(logits_KV, node_N, temperature, generator)
            response_NT[:, t] = torch.where(alive_N, token_N, 0)
            logp_NT[:, t] = torch.where(alive_N, token_logp_N, 0.0)
            mask_NT[:, t] = alive_N
            alive_N = alive_N & ~torch.isin(token_N, eos)
            if t + 1 == max_new_tokens or not bool(alive_N.any()):
                break
            parent_K, token_K, node_N = grow_prefixes(node_N, token_N, alive_N, logits_KV.shape[-1])
            if not torch.equal(parent_K, torch.arange(len(logits_KV), device=device)):
                cache.batch_select_indices(parent_K)
            if padded:
                mask_KL = torch.cat([mask_KL[parent_K], mask_KL.new_ones((len(parent_K), 1))], dim=-1)
                extra = {"attention_mask": mask_KL, "position_ids": mask_KL.sum(-1, keepdim=True) - 1}
            logits_KV = model(input_ids=token_K[:, None], past_key_values=cache, use_cache=True, **extra).logits[:, -1]

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


def sample_tokens(
    logits_KV: Tensor, node_N: Tensor, temperature: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """A token for every rollout from softmax(logits / temperature) of its node, and its fp32 log-prob there.

    At temperature 0 it is the likeliest token, with its log-prob at temperature 1.
    """
    if temperature == 0:
        logp_KV = torch.log_softmax(logits_KV.float(), dim=-1)
        token_N = logp_KV.argmax(-1)[node_N]
        return token_N, logp_KV[node_N, token_N]
    logp_KV = torch.log_softmax(logits_KV.float() / temperature, dim=-1)
    token_N = torch.multinomial(logp_KV.exp()[node_N], 1, generator=generator).squeeze(-1)
    return token_N, logp_KV[node_N, token_N]


def grow_prefixes(node_N: Tensor, token_N: Tensor, alive_N: Tensor, vocabulary: int) -> tuple[Tensor, Tensor, Tensor]:
    """The distinct prefixes after one more token: (parent node of each, its last token, node of each rollout)."""
    key_K, child = torch.unique(node_N[alive_N] * vocabulary + token_N[alive_N], return_inverse=True)
    node_N = torch.zeros_like(node_N)  # a finished rollout may point anywhere
    node_N[alive_N] = child
    return torch.div(key_K, vocabulary, rounding_mode="floor"), key_K % vocabulary, node_N
