"""Compiled layers on CUDA, in a file of their own: they take longest."""

import pytest
import torch

from gmc_core.training.run_config import RunConfig
from tests.cuda import COMPILES, DEVICE, ON_CUDA, on_cuda
from tests.models import change, random_policy, sampled_batch

pytestmark = [*ON_CUDA, COMPILES]

CONFIG = RunConfig(prompts_per_update=4, group_size=8, gradient_clip=None, learning_rate=0.5, device=DEVICE)


@pytest.mark.parametrize("more", [{}, {"gradient_checkpointing": True, "micro_batch_tokens": 200}], ids=str)
def test_a_compiled_update_is_the_plain_one(more):
    batch = sampled_batch(on_cuda(random_policy(1)))
    batch.reward_PG[:, ::2] = 1.0  # random policies solve nothing
    expected, metrics = change(on_cuda(random_policy()), CONFIG, batch)
    found, found_metrics = change(on_cuda(random_policy()), CONFIG.replace(compile=True, **more), batch)
    assert metrics["grad_norm"] > 0
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=5e-3)
    assert found_metrics["loss"] == pytest.approx(metrics["loss"], abs=1e-4)
