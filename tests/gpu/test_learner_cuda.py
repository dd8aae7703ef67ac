"""The learner on CUDA: fused optimiser, bf16 beside fp32, flash attention, recomputed layers."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from gmc_core.rollouts.policy import response_log_probs
from gmc_core.training.learner import Learner
from gmc_core.training.micro_batches import MicroBatch
from gmc_core.training.run_config import RunConfig
from gmc_core.training.step import OptimizerStep
from tests.cuda import DEVICE, ON_CUDA, on_cuda
from tests.models import change, random_policy, sampled_batch, warm_policy

pytestmark = ON_CUDA

CONFIG = RunConfig(prompts_per_update=4, group_size=8, gradient_clip=None, learning_rate=0.5)
ON_DEVICE = CONFIG.replace(device=DEVICE)


@pytest.fixture(scope="module")
def batches():
    """Rollouts of the warm start on the CPU, and the same on the device."""
    batch = sampled_batch(warm_policy())
    return batch, type(batch)(**{name: value.to(DEVICE) for name, value in vars(batch).items()})


@pytest.mark.parametrize("more", [{}, {"micro_batch_tokens": 200}, {"gradient_checkpointing": True}])
def test_an_fp32_update_is_that_of_the_cpu(batches, more):
    expected, metrics = change(warm_policy(), CONFIG, batches[0])
    found, found_metrics = change(on_cuda(warm_policy()), ON_DEVICE.replace(**more), batches[1])
    torch.testing.assert_close(found.cpu(), expected, atol=2e-5, rtol=1e-3)
    assert found_metrics["grad_norm"] == pytest.approx(metrics["grad_norm"], rel=1e-3)
    assert found_metrics["log_mass_mean"] == pytest.approx(metrics["log_mass_mean"], abs=1e-4)


def test_a_bf16_update_points_where_the_fp32_update_does(batches, record_property):
    expected, metrics = change(warm_policy(), CONFIG.replace(micro_batch_tokens=200), batches[0])
    policy = on_cuda(warm_policy(), torch.bfloat16)
    learner = Learner(policy, ON_DEVICE.replace(micro_batch_tokens=200, dtype="bfloat16"))
    start = [master.detach().clone() for master in learner.step.masters]
    short_metrics = learner.update(batches[1])
    moved = torch.cat([(now - then).flatten() for now, then in zip(learner.step.masters, start, strict=True)]).detach()
    cosine = torch.nn.functional.cosine_similarity(moved.cpu(), expected, dim=0).item()
    record_property("cosine_of_bf16_and_fp32_update", cosine)
    assert cosine > 0.98
    assert short_metrics["grad_norm"] == pytest.approx(metrics["grad_norm"], rel=0.05)


def test_the_pass_of_the_learner_can_take_flash_attention():
    """It raises with a mask, and nothing else may run here. The prompts are of unequal lengths, so there is padding."""
    policy = on_cuda(random_policy(), torch.bfloat16)
    prompt_mask = torch.tensor([[False, True, True, True], [True, True, True, True]], device=DEVICE)
    prompt, response = torch.full((2, 4), 4, device=DEVICE), torch.full((6, 9), 5, device=DEVICE)
    index = torch.arange(6, device=DEVICE) // 3
    plain = response_log_probs(policy.model, prompt, prompt_mask, response, index, share_prefix=True)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        logp = response_log_probs(policy.model, prompt, prompt_mask, response, index, share_prefix=False)
        logp.sum().backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in policy.model.parameters())
    torch.testing.assert_close(logp, plain, atol=0.1, rtol=0)


def test_prompts_are_shared_only_when_they_are_longer_than_responses():
    learner, rows = Learner(on_cuda(random_policy()), ON_DEVICE), torch.arange(4, device=DEVICE)
    assert learner._shares_prefix(MicroBatch(rows, prompt_width=9, response_width=8))
    assert not learner._shares_prefix(MicroBatch(rows, prompt_width=8, response_width=8))


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_the_fused_kernel_is_the_default_and_takes_the_same_steps(optimizer):
    weights = [torch.randn(33, 7, generator=torch.Generator().manual_seed(i)) for i in range(3)]
    config = RunConfig(optimizer=optimizer, learning_rate=1e-2, gradient_clip=0.5, device=DEVICE)
    results = []
    for fused in (None, False):
        parameters = [torch.nn.Parameter(weight.to(DEVICE)) for weight in weights]
        step = OptimizerStep(parameters, config.replace(fused_optimizer=fused))
        assert bool(step.optimizer.defaults["fused"]) == (fused is None)
        for turn in range(4):
            step.clear()
            sum((parameter * (parameter + turn)).sum() for parameter in parameters).backward()
            metrics = step.take()
        results.append((metrics, [parameter.detach() for parameter in parameters]))
    torch.testing.assert_close(results[0][1], results[1][1], atol=1e-6, rtol=1e-5)
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-4)
