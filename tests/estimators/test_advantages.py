import math

import pytest
import torch

from gmc_core import group_advantages
from gmc_core.estimators.advantages import NORMALIZATIONS, STD_FLOOR

REWARD = torch.tensor([[1.0, 0.0, 0.0, 1.0, 1.0], [0.25, 0.5, 1.0, 0.0, 0.0]])
LENGTHS = torch.tensor([[3, 5, 2, 7, 4], [1, 2, 3, 4, 5]])


def _advantages(reward, normalization, **options):
    if normalization == "length_corrected":
        options.setdefault("lengths", LENGTHS)
    return group_advantages(reward, normalization=normalization, **options)


def test_center():
    torch.testing.assert_close(group_advantages(REWARD), REWARD - REWARD.mean(-1, keepdim=True))


def test_leave_one_out_subtracts_the_mean_of_the_others():
    others = (REWARD.sum(-1, keepdim=True) - REWARD) / 4
    torch.testing.assert_close(group_advantages(REWARD, normalization="leave_one_out"), REWARD - others)


def test_std_is_of_the_population():
    centered = REWARD - REWARD.mean(-1, keepdim=True)
    expected = centered / (REWARD.std(-1, keepdim=True, correction=0) + STD_FLOOR)
    torch.testing.assert_close(group_advantages(REWARD, normalization="std"), expected)


def test_std_reaches_the_square_root_of_the_group_size():
    one_success = torch.zeros(16)
    one_success[5] = 1.0
    advantage = group_advantages(one_success, normalization="std")
    assert advantage.max().item() == pytest.approx(math.sqrt(15), rel=1e-4)


def test_length_corrected_divides_before_centering():
    per_token = REWARD / LENGTHS
    expected = per_token - per_token.mean(-1, keepdim=True)
    torch.testing.assert_close(_advantages(REWARD, "length_corrected"), expected)


@pytest.mark.parametrize("normalization", ["center", "leave_one_out", "std"])
@pytest.mark.parametrize("value", [0.1, 1.0, 1 / 3, -7.3, 1e6])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 49])
def test_equal_rewards_give_exactly_zero(normalization, value, size):
    assert torch.equal(
        group_advantages(torch.full((2, size), value), normalization=normalization), torch.zeros(2, size)
    )


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_invalid_rollouts_are_left_out_whatever_their_reward(normalization):
    valid = torch.tensor([[1, 1, 0, 1, 0], [0, 0, 1, 0, 0]], dtype=torch.bool)
    dirty = torch.where(valid, REWARD, math.nan)
    advantage = _advantages(dirty, normalization, valid=valid)
    options = {"lengths": LENGTHS[0][valid[0]]} if normalization == "length_corrected" else {}
    alone = group_advantages(REWARD[0][valid[0]], normalization=normalization, **options)
    torch.testing.assert_close(advantage[0][valid[0]], alone)
    assert torch.equal(advantage[~valid], torch.zeros(6))
    assert torch.equal(advantage[1], torch.zeros(5))  # a group of one valid rollout


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_interleaved_labels_equal_groups(normalization):
    grouped = _advantages(REWARD, normalization)
    order = torch.tensor([7, 0, 3, 9, 4, 1, 8, 2, 6, 5])
    labels = torch.tensor([40, -3]).repeat_interleave(5)[order]
    options = {"lengths": LENGTHS.flatten()[order]} if normalization == "length_corrected" else {}
    flat = group_advantages(REWARD.flatten()[order], normalization=normalization, group_index=labels, **options)
    torch.testing.assert_close(flat, grouped.flatten()[order])


def test_dtypes():
    assert group_advantages(torch.tensor([True, False])).dtype == torch.float32
    assert group_advantages(torch.tensor([1, 0, 0])).tolist() == pytest.approx([2 / 3, -1 / 3, -1 / 3])
    assert group_advantages(REWARD.to(torch.bfloat16)).dtype == torch.float32
    assert group_advantages(REWARD.double()).dtype == torch.float64


def test_errors_teach():
    with pytest.raises(ValueError, match=r"unknown normalization 'centre'. Did you mean 'center'\?"):
        group_advantages(REWARD, normalization="centre")
    with pytest.raises(ValueError, match="pass lengths"):
        group_advantages(REWARD, normalization="length_corrected")
    with pytest.raises(ValueError, match="drop them"):
        group_advantages(REWARD, lengths=LENGTHS)
    with pytest.raises(ValueError, match="lengths must be > 0"):
        group_advantages(REWARD, normalization="length_corrected", lengths=LENGTHS * 0)
    with pytest.raises(ValueError, match="valid=False"):
        group_advantages(torch.tensor([1.0, math.nan]))
    with pytest.raises(ValueError, match="one entry per rollout"):
        group_advantages(REWARD, valid=torch.ones(2, dtype=torch.bool))
