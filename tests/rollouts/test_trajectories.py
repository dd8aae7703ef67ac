from dataclasses import replace

import pytest
import torch

from gmc_core.rollouts.tasks import Prompt
from gmc_core.rollouts.trajectories import Batch, Group


def group(size, lengths, prompt="1+1=", limit=6):
    mask = torch.arange(limit) < torch.tensor(lengths)[:, None]
    return Group(
        prompt=Prompt(prompt, "2"),
        prompt_tokens_L=torch.arange(1, len(prompt) + 1),
        response_GT=torch.full((size, limit), 5),
        mask_GT=mask,
        behavior_logp_GT=torch.full((size, limit), -1.0),
        version_GT=torch.full((size, limit), 3),
        finished_G=torch.tensor(lengths) < limit,
        reward_G=torch.ones(size),
    )


def test_batch_is_trimmed_and_padded():
    batch = Batch.from_groups([group(2, [3, 4]), group(2, [1, 2], prompt="1+1+1=")], group_size=2)
    assert batch.shape == (2, 2, 4)
    assert batch.prompt_PL.tolist() == [[0, 0, 1, 2, 3, 4], [1, 2, 3, 4, 5, 6]]
    assert batch.prompt_mask_PL.sum(-1).tolist() == [4, 6]
    assert batch.mask_PGT.sum(-1).tolist() == [[3, 4], [1, 2]]
    assert batch.valid_PG.all()


def test_a_torn_group_is_an_error_that_names_it():
    with pytest.raises(ValueError, match=r"group 1 .* is torn: 1 rollouts, expected 2"):
        Batch.from_groups([group(2, [3, 4]), group(1, [3])], group_size=2)


def test_unequal_groups_are_padded_with_invalid_rollouts_when_meant():
    batch = Batch.from_groups([group(2, [3, 4]), group(1, [3])])
    assert batch.valid_PG.tolist() == [[True, True], [True, False]]
    assert not batch.mask_PGT[1, 1].any()


def test_truncated_rollouts_can_be_left_out():
    batch = Batch.from_groups([group(3, [2, 6, 3])], group_size=3, mask_truncated=True)
    assert batch.valid_PG.tolist() == [[True, False, True]]


def test_responses_of_different_padding_meet():
    batch = Batch.from_groups([group(2, [3, 4], limit=4), group(2, [8, 2], limit=8)])
    assert batch.shape == (2, 2, 8)
    assert batch.mask_PGT.sum(-1).tolist() == [[3, 4], [8, 2]]


def test_malformed_groups_say_what_is_wrong():
    good = group(2, [3, 4])
    with pytest.raises(ValueError, match="no rewards"):
        Batch.from_groups([replace(good, reward_G=None)])
    with pytest.raises(ValueError, match="at least one group"):
        Batch.from_groups([])
    with pytest.raises(ValueError, match=r"behavior_logp_GT has shape \(2, 5\)"):
        replace(good, behavior_logp_GT=torch.zeros(2, 5))
    with pytest.raises(ValueError, match="reward_G has shape"):
        replace(good, reward_G=torch.zeros(3))
