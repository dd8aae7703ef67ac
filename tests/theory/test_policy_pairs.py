"""Stale pairs: the divergence asked for, the direction, and the rules whose weights depend on the group."""

import pytest
import torch

from gmc_core.estimators.exact_moments import ACROSS_GROUPS, mse_crossover
from gmc_core.estimators.weights import ESTIMATORS
from gmc_core.theory.policy_pairs import (
    GROUP_RULES,
    OutOfReach,
    bias_by_group_size,
    count_larger_bias,
    stale_pair,
    stale_pairs,
)


def generator(seed=4):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("direction", ["gradient", "random"])
@pytest.mark.parametrize("kl", [0.01, 0.5])
def test_pair_has_the_divergence_asked_for(kl, direction):
    pair = stale_pair(kl, generator(5), direction=direction)
    assert pair.kl == pytest.approx(kl, rel=1e-9)
    assert pair.chi_square > kl
    assert pair.largest_ratio > 1
    if direction == "gradient":  # learning happened in between
        assert pair.current.expected_reward(pair.reward) > pair.behavior.expected_reward(pair.reward)


def test_same_generator_state_same_behaviour_policy():
    near, far = (stale_pair(kl, generator()) for kl in (0.1, 0.5))
    assert torch.equal(near.behavior.logits, far.behavior.logits)
    assert torch.equal(near.reward, far.reward)
    pairs = stale_pairs(3, 0.1, generator())
    assert torch.equal(pairs[0].behavior.logits, near.behavior.logits)
    assert not torch.equal(pairs[0].behavior.logits, pairs[1].behavior.logits)


def test_group_rules_are_exactly_those_whose_bias_depends_on_the_group():
    pair = stale_pair(0.5, generator())
    names = [name for name in ESTIMATORS if name not in ACROSS_GROUPS]
    moving = {name for name in names if abs(pair.moments(name, 1).bias - pair.moments(name, 3).bias) > 1e-9}
    assert moving == set(GROUP_RULES)
    bias = bias_by_group_size(pair, ["gmc", "tic_mask"], [1, 3])
    assert bias["tic_mask"] == [pair.moments("tic_mask", 1).bias] * 2
    assert bias["gmc"] == [pair.moments("gmc", G).bias for G in (1, 3)]


def test_options_reach_the_estimator():
    pair = stale_pair(0.5, generator())
    assert pair.moments("gmc", 4, epsilon=1.0).bias < pair.moments("gmc", 4, epsilon=0.1).bias


def test_smaller_bound_larger_bias_happens_when_the_capped_outcomes_have_small_advantages():
    pairs = stale_pairs(6, 0.5, generator(0))
    assert count_larger_bias(pairs, "gmc", "tic_truncate", 2, baseline=0.5) == 0
    assert count_larger_bias(pairs, "gmc", "tic_truncate", 2, baseline=0.9) > 0


def test_crossover_of_mean_squared_errors():
    gmc, truncate = (stale_pair(0.5, generator()).moments(name, 8) for name in ("gmc", "tic_truncate"))
    n = mse_crossover((gmc.bias**2, truncate.bias**2), (gmc.variance, truncate.variance))
    assert gmc.mse(n) == pytest.approx(truncate.mse(n), rel=1e-9)
    assert gmc.mse(1.1 * n) < truncate.mse(1.1 * n)
    assert gmc.mse(0.9 * n) > truncate.mse(0.9 * n)
    assert mse_crossover((0.2, 0.1), (1.0, 2.0)) == float("inf")
    assert mse_crossover((0.1, 0.2), (1.0, 2.0)) == 0.0


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="kl > 0"):
        stale_pair(0.0, generator())
    with pytest.raises(ValueError, match="'gradient' or 'random'"):
        stale_pair(0.1, generator(), direction="up")
    with pytest.raises(OutOfReach, match="ask for less"):
        stale_pair(50.0, generator())
