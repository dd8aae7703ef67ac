"""Every rule of the menu on CUDA gives what it gives on a CPU."""

import pytest
import torch

from gmc_core.estimators import (
    ESTIMATORS,
    gmc_weights,
    group_advantages,
    group_diagnostics,
    make_estimator,
    trajectory_log_ratio,
)
from tests.cuda import DEVICE, ON_CUDA

pytestmark = ON_CUDA

SHAPE = (5, 8, 30)


def step(device):
    """(current and behaviour log-probs, mask, advantages) with far ratios, short rollouts and an even group."""
    generator = torch.Generator().manual_seed(0)
    behavior = -torch.rand(SHAPE, generator=generator)
    current = behavior + 0.2 * torch.randn(SHAPE, generator=generator)
    mask = torch.arange(SHAPE[-1]) < torch.randint(1, SHAPE[-1], SHAPE[:2], generator=generator).unsqueeze(-1)
    reward = (torch.rand(SHAPE[:2], generator=generator) < 0.5).float()
    reward[0] = 1.0
    advantage = group_advantages(reward, normalization="std")
    return tuple(value.to(device) for value in (current, behavior, mask, advantage))


@pytest.mark.parametrize("name", ESTIMATORS)
def test_weights_are_those_of_the_cpu(name):
    own, other = (make_estimator(name)(*step(device)) for device in (DEVICE, "cpu"))
    assert own.device.type == DEVICE
    torch.testing.assert_close(own.cpu(), other, atol=1e-5, rtol=1e-4)


def test_diagnostics_are_those_of_the_cpu():
    found = []
    for device in (DEVICE, "cpu"):
        current, behavior, mask, advantage = step(device)
        weight = make_estimator("gmc")(current, behavior, mask, advantage)
        log_ratio = trajectory_log_ratio(current, behavior, mask)
        values = group_diagnostics(log_ratio, weight, epsilon=0.2, mask=mask, advantage=advantage)
        found.append({name: value.item() for name, value in values.items()})
    assert found[0] == pytest.approx(found[1], rel=1e-4, abs=1e-5)


def test_shuffled_labels_make_the_groups_of_the_grid():
    log_ratio = torch.randn(6, 8, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    order = torch.randperm(48, generator=torch.Generator().manual_seed(2)).to(DEVICE)
    label = torch.arange(6, device=DEVICE).repeat_interleave(8)
    flat = gmc_weights(log_ratio.flatten()[order], group_index=label[order])
    torch.testing.assert_close(flat, gmc_weights(log_ratio).flatten()[order])
