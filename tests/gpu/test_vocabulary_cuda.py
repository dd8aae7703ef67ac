"""Log-probs in blocks of the vocabulary on CUDA, where bf16 is multiplied with fp32 results by another path."""

import pytest
import torch

from gmc_core.rollouts.vocabulary_log_probs import LogitRule, vocabulary_log_probs
from tests.cuda import DEVICE, ON_CUDA

pytestmark = ON_CUDA

RULES = [LogitRule(), LogitRule(scale=0.5, softcap=3.0, temperature=0.7)]


def case(dtype, device, rule, block, reference=False):
    """(log-probs, gradients of hidden states and weight); a reference takes the same rounded inputs in float64."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(37, 64, generator=generator).to(dtype)
    weight = (0.2 * torch.randn(5000, 64, generator=generator)).to(dtype)
    tokens = torch.randint(5000, (37,), generator=generator).to(device)
    direction = torch.randn(37, generator=generator)
    hidden, weight = (
        value.to(device, torch.float64 if reference else dtype).requires_grad_() for value in (hidden, weight)
    )
    logp = vocabulary_log_probs(hidden, weight, tokens, rule=rule, block=block)
    (logp * direction.to(logp)).sum().backward()
    return logp.detach().double().cpu(), hidden.grad.double().cpu(), weight.grad.double().cpu()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("block", [1024, 5000])
def test_bf16_is_multiplied_with_fp32_results(rule, block, record_property):
    found = case(torch.bfloat16, DEVICE, rule, block)
    expected = case(torch.bfloat16, "cpu", rule, block, reference=True)
    gap = (found[0] - expected[0]).abs().max().item()
    record_property("largest_gap_nats", gap)
    assert gap < 1e-3, "logits rounded to bf16 would be off by 0.01"
    for own, exact in zip(found[1:], expected[1:], strict=True):  # gradients come back in bf16
        assert (own - exact).norm() < 0.01 * exact.norm()


@pytest.mark.parametrize("rule", RULES)
def test_fp32_is_that_of_the_cpu(rule):
    for own, other in zip(case(torch.float32, DEVICE, rule, 1024), case(torch.float32, "cpu", rule, 1024), strict=True):
        torch.testing.assert_close(own, other, atol=1e-4, rtol=1e-3)
