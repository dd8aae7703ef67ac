"""Sampling on CUDA: the same numbers from the same generator, and log-probs that the learner agrees with."""

import dataclasses

import pytest
import torch

from gmc_core.paths import TINY_QWEN3
from gmc_core.rollouts.continuous import GroupRequest, generate_groups
from gmc_core.rollouts.engine import TransformersEngine
from gmc_core.rollouts.engine_spec import EngineSpec
from gmc_core.rollouts.policy import snapshot
from gmc_core.rollouts.random_streams import stream_generator
from gmc_core.rollouts.tasks import RunningSums
from gmc_core.rollouts.trajectories import Batch
from gmc_core.training.live_config import PROBE_TOLERANCE
from gmc_core.training.rollout_log_probs import rollout_log_probs
from gmc_core.training.weight_probe import log_probs
from tests.cuda import DEVICE, ON_CUDA, fixed_log_probs, on_cuda
from tests.models import random_policy, warm_policy

pytestmark = ON_CUDA

PROMPTS = RunningSums().sample_prompts(4, stream_generator(0, "prompts"))
REQUESTS = [GroupRequest(ticket, prompt, 8, 14, 1.0, 10 + ticket) for ticket, prompt in enumerate(PROMPTS)]
DTYPES = [torch.float32, torch.bfloat16]


def name(dtype):
    return str(dtype).removeprefix("torch.")


def generate(policy, seed):
    generator = stream_generator(seed, "rollouts", device=DEVICE)
    options = {"group_size": 8, "max_new_tokens": 14, "temperature": 1.0}
    return TransformersEngine(policy).generate(PROMPTS, generator=generator, **options)


def responses(groups):
    return [row[mask].tolist() for group in groups for row, mask in zip(group.response_GT, group.mask_GT, strict=True)]


def test_a_generator_on_the_device_draws_the_same_again():
    policy = on_cuda(random_policy())
    first, again, other = (responses(generate(policy, seed)) for seed in (3, 3, 4))
    assert first == again != other


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_engine_and_learner_agree_on_the_log_probs_of_rollouts(dtype, record_property):
    policy = on_cuda(warm_policy(), dtype)
    groups = [dataclasses.replace(group, reward_G=torch.zeros(8, device=DEVICE)) for group in generate(policy, 0)]
    batch = Batch.from_groups(groups)
    with torch.no_grad():
        logp_NT = rollout_log_probs(policy.model, batch, torch.arange(32, device=DEVICE), 1.0, share_prefix=False)
    gap = (logp_NT - batch.behavior_logp_PGT.flatten(0, 1))[batch.mask_PGT.flatten(0, 1)].abs().max().item()
    record_property("largest_gap_nats", gap)
    assert gap < PROBE_TOLERANCE[name(dtype)]


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_the_continuous_engine_scores_as_the_probe_of_the_learner(dtype, record_property):
    engine = EngineSpec("transformers", str(TINY_QWEN3), dtype=name(dtype), device=DEVICE).build()
    (group, *_) = generate_groups(engine, REQUESTS)
    response = group.response_GT[0][group.mask_GT[0]]
    own = engine.score(group.prompt_tokens_L, response)
    gap = (own - log_probs(on_cuda(warm_policy(), dtype), group.prompt_tokens_L, response)).abs().max().item()
    record_property("largest_gap_nats", gap)
    assert gap < PROBE_TOLERANCE[name(dtype)]


def test_the_continuous_engine_draws_what_it_draws_on_a_cpu():
    """Its uniform numbers come from the CPU; only a number within rounding of a boundary may fall on the other side."""
    drawn = [
        responses(generate_groups(EngineSpec("transformers", str(TINY_QWEN3), device=device).build(), REQUESTS))
        for device in (DEVICE, "cpu")
    ]
    same = sum(own == other for own, other in zip(*drawn, strict=True))
    assert same >= 31, f"{same} of 32 rollouts are the same"


def test_weights_on_the_device_go_into_an_engine_on_it():
    engine, newer = TransformersEngine(on_cuda(random_policy(0))), on_cuda(random_policy(1))
    before, expected = fixed_log_probs(engine.policy), fixed_log_probs(newer)
    engine.update_weights(snapshot(newer.model), 1)
    assert torch.equal(fixed_log_probs(engine.policy), expected) and not torch.allclose(before, expected, atol=1e-3)
