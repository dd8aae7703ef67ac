import math

import pytest
import torch

from gmc_core import counted_rollouts, token_log_ratio, trajectory_log_ratio

GARBAGE = [math.nan, math.inf, -math.inf, -9999.0, 1e30]


def _logps(shape=(3, 4, 6), seed=0):
    generator = torch.Generator().manual_seed(seed)
    current = -3 * torch.rand(shape, generator=generator)
    behavior = -3 * torch.rand(shape, generator=generator)
    mask = torch.rand(shape, generator=generator) < 0.7
    mask[..., 0] = True
    return current, behavior, mask


def test_token_and_trajectory_ratios_by_hand():
    current = torch.tensor([[-1.0, -2.0, -0.5]])
    behavior = torch.tensor([[-1.5, -1.0, -7.0]])
    mask = torch.tensor([[True, True, False]])
    torch.testing.assert_close(token_log_ratio(current, behavior, mask), torch.tensor([[0.5, -1.0, 0.0]]))
    torch.testing.assert_close(trajectory_log_ratio(current, behavior, mask), torch.tensor([-0.5]))


@pytest.mark.parametrize("garbage", GARBAGE)
def test_masked_positions_are_inert(garbage):
    current, behavior, mask = _logps()
    expected = token_log_ratio(current, behavior, mask)
    dirty_current, dirty_behavior = current.clone(), behavior.clone()
    dirty_current[~mask], dirty_behavior[~mask] = garbage, garbage
    assert torch.equal(token_log_ratio(dirty_current, dirty_behavior, mask), expected)
    assert torch.equal(trajectory_log_ratio(dirty_current, dirty_behavior, mask), expected.sum(-1))


def test_gradient_is_clean_beside_masked_garbage():
    current, behavior, mask = _logps()
    current[~mask] = math.nan
    current.requires_grad_()
    trajectory_log_ratio(current, behavior, mask).sum().backward()
    assert torch.equal(current.grad, mask.float())


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("fault", [math.nan, math.inf, -math.inf])
def test_a_fault_under_the_mask_poisons_its_rollout_only(side, fault):
    logps = list(_logps())
    clean = trajectory_log_ratio(*logps)
    logps[side] = logps[side].clone()
    logps[side][1, 2, 0] = fault
    log_ratio = trajectory_log_ratio(*logps)
    assert log_ratio[1, 2].isnan()
    others = torch.ones(3, 4, dtype=torch.bool)
    others[1, 2] = False
    assert torch.equal(log_ratio[others], clean[others])


def test_filler_for_a_missing_behavior_log_probability_is_missing_not_a_floor():
    current, behavior, mask = _logps()
    behavior[0, 0, 0] = -9999.0
    log_ratio = trajectory_log_ratio(current, behavior, mask)
    assert log_ratio[0, 0].isnan() and log_ratio.isnan().sum() == 1


def test_rollout_without_response_tokens_has_no_ratio():
    current, behavior, mask = _logps()
    mask[2, 1] = False
    log_ratio = trajectory_log_ratio(current, behavior, mask)
    assert log_ratio[2, 1].isnan() and log_ratio.isnan().sum() == 1
    assert counted_rollouts(log_ratio).sum() == 11


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_summed_in_float32(dtype):
    current, behavior, mask = _logps((2, 3, 4000))
    current, behavior = current.to(dtype), behavior.to(dtype)
    log_ratio = trajectory_log_ratio(current, behavior, mask)
    assert log_ratio.dtype == torch.float32
    exact = torch.where(mask, current.double() - behavior.double(), 0.0).sum(-1)
    torch.testing.assert_close(log_ratio.double(), exact, rtol=1e-5, atol=1e-3)


def test_double_stays_double_and_numeric_masks_are_taken():
    current, behavior, mask = _logps()
    expected = trajectory_log_ratio(current, behavior, mask)
    assert trajectory_log_ratio(current.double(), behavior.double(), mask).dtype == torch.float64
    for numeric in (mask.long(), mask.float()):
        assert torch.equal(trajectory_log_ratio(current, behavior, numeric), expected)


def test_zero_staleness_gives_exactly_zero():
    current, _, mask = _logps()
    assert torch.equal(trajectory_log_ratio(current, current.clone(), mask), torch.zeros(3, 4))


def test_counted_rollouts():
    log_ratio = torch.tensor([0.0, -math.inf, math.inf, math.nan, 1000.0])
    assert counted_rollouts(log_ratio).tolist() == [True, True, False, False, True]
    valid = torch.tensor([False, True, True, True, True])
    assert counted_rollouts(log_ratio, valid).tolist() == [False, True, False, False, True]


def test_errors_teach():
    current, behavior, mask = _logps()
    with pytest.raises(ValueError, match=r"mask has shape \(3, 4\), expected \(3, 4, 6\)"):
        trajectory_log_ratio(current, behavior, mask[..., 0])
    with pytest.raises(ValueError, match="logp_behavior has shape"):
        token_log_ratio(current, behavior[:, :2], mask)
    with pytest.raises(ValueError, match="only 0 and 1"):
        token_log_ratio(current, behavior, mask * 0.5)
    with pytest.raises(TypeError):
        token_log_ratio(current.long(), behavior, mask)
