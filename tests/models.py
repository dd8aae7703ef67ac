"""Small models for the tests: random ones for exactness, the committed warm start where rewards must occur."""

from __future__ import annotations

import copy
from functools import cache

import torch

from gmc_core.paths import TINY_QWEN3
from gmc_core.rollouts.engine import TransformersEngine
from gmc_core.rollouts.policy import Policy, load_policy, snapshot, weights_fingerprint
from gmc_core.rollouts.random_streams import stream_generator
from gmc_core.rollouts.scoring import score_groups
from gmc_core.rollouts.tasks import make_task
from gmc_core.rollouts.tiny_qwen3 import character_tokenizer, tiny_qwen3
from gmc_core.rollouts.trajectories import Batch
from gmc_core.training.learner import Learner
from gmc_core.training.run_config import RunConfig


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


def sampled_batch(policy: Policy, seed: int = 0) -> Batch:
    """4 x 8 scored rollouts of the running sums, on the policy's device."""
    task = make_task("running_sums")
    groups = TransformersEngine(policy).generate(
        task.sample_prompts(4, stream_generator(seed, "prompts")),
        group_size=8,
        max_new_tokens=14,
        temperature=1.0,
        generator=stream_generator(seed, "rollouts", device=policy.device),
    )
    return Batch.from_groups(score_groups(groups, task, policy.tokenizer))


def change(policy: Policy, config: RunConfig, batch: Batch) -> tuple[torch.Tensor, dict[str, float]]:
    """(the change of the weights as one vector, metrics) of one update."""
    before = snapshot(policy.model)
    metrics = Learner(policy, config).update(batch)
    after = snapshot(policy.model)
    return torch.cat([(after[name].float() - before[name].float()).flatten() for name in before]), metrics
