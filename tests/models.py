"""Small models for the tests: random ones for exactness, the committed warm start where rewards must occur."""

from __future__ import annotations

import copy
from functools import cache

import torch

from gmc_core.paths import TINY_QWEN3
from gmc_core.rollouts.policy import Policy, load_policy, weights_fingerprint
from gmc_core.rollouts.tiny_qwen3 import character_tokenizer, tiny_qwen3


@cache
def _random(seed: int) -> Policy:
    model, tokenizer = tiny_qwen3(seed, hidden_size=64, layers=2, heads=2, kv_heads=1), character_tokenizer()
    with torch.no_grad():  # logits of about half a nat, so that two seeds differ as policies and ratios leave 1
        model.get_output_embeddings().weight.mul_(3.0)
    return Policy(model, tokenizer, (tokenizer.eos_token_id,), weights_fingerprint(model))


@cache
def _warm() -> Policy:
    return load_policy(TINY_QWEN3)


def _copy(policy: Policy) -> Policy:
    return Policy(copy.deepcopy(policy.model), policy.tokenizer, policy.eos_ids, policy.fingerprint)


def random_policy(seed: int = 0) -> Policy:
    """A fresh copy of a random two-layer Qwen3: its weights may be changed."""
    return _copy(_random(seed))


def warm_policy() -> Policy:
    """A fresh copy of the committed warm start."""
    return _copy(_warm())
