"""Theorem 1 along whole delayed runs: the batched moments against `exact_moments`, and both sides of the bound."""

import math

import pytest
import torch

from gmc_core.estimators.bounds import biased_sgd_bound
from gmc_core.estimators.enumerable import EnumerablePolicy, response_space
from gmc_core.estimators.exact_moments import exact_moments
from gmc_core.estimators.weights import make_estimator
from gmc_core.theory.delayed_bound import ADVANTAGE, SCORE, SMOOTHNESS, bound_along_runs, conditional_moments

DELAYS = (0, 8, 32)


@pytest.mark.parametrize("name", ["gmc", "tic_mask", "snis", "ppo_clip"])
def test_conditional_moments_are_those_of_each_pair_alone(name):
    space, generator = response_space(2, 3), torch.Generator().manual_seed(5)
    now, then = torch.randn(2, 4, space.contexts, space.vocabulary, generator=generator, dtype=torch.float64)
    reward = torch.rand(4, space.responses, generator=generator, dtype=torch.float64)
    rule = make_estimator(name)
    together = conditional_moments(rule, EnumerablePolicy(space, now), EnumerablePolicy(space, then), reward, 3)
    for k in range(4):
        alone = exact_moments(rule, EnumerablePolicy(space, now[k]), EnumerablePolicy(space, then[k]), reward[k], 3)
        assert together.squared_bias[k].item() == pytest.approx(alone.bias**2, rel=1e-6, abs=1e-14)
        assert together.second_moment[k].item() == pytest.approx(alone.second_moment, rel=1e-6)
        assert together.largest_norm[k].item() == pytest.approx(alone.max_norm, rel=1e-6)
        assert (together.changed[k] > 1e-6) == (alone.distortion > 1e-6)


def test_a_rule_across_groups_is_refused():
    policy = EnumerablePolicy(response_space(2, 1), torch.zeros(1, 1, 2, dtype=torch.float64))
    with pytest.raises(ValueError, match="m2po looks across the groups"):
        conditional_moments(make_estimator("m2po"), policy, policy, torch.ones(1, 2, dtype=torch.float64), 2)


@pytest.mark.parametrize("name", ["gmc", "tic_truncate", "tic_mask"])
def test_both_sides_along_delayed_runs(name):
    run = bound_along_runs(name, DELAYS, 1.0, steps=60, runs=8)
    assert run.squared_gradient.shape == (3, 8)
    assert run.squared_bias[0] < 1e-20 and run.changed[0] == 0  # delay 0: the ratios are 1
    assert (run.changed[1:] > 0.01).all() and (run.squared_bias[1:] > 1e-7).all()
    assert (run.left_side <= run.bound).all() and (run.bound <= run.proved).all()
    assert (run.largest_norm <= 1.2 * ADVANTAGE * SCORE).all()
    again = biased_sgd_bound(gap_of_start(), 1.0, 60, SMOOTHNESS, run.second_moment, run.squared_bias)
    torch.testing.assert_close(run.bound, again)


def gap_of_start():
    weight = [math.exp(x) for x in (-1.0, 0.3, 0.7)]
    return 1 - (weight[0] + 0.4 * weight[1]) / sum(weight)


def test_a_rule_without_ratio_bound_has_no_provable_side_and_a_call_repeats_itself():
    first, second = (bound_along_runs("snis", (0, 4), 0.5, steps=20, runs=4) for _ in range(2))
    assert first.proved.isnan().all() and not first.bound.isnan().any()
    assert torch.equal(first.squared_gradient, second.squared_gradient)


def test_epsilon_reaches_the_rule():
    tight, loose = (bound_along_runs("gmc", (16,), 1.0, steps=40, runs=4, epsilon=e).changed for e in (0.0, 1e4))
    assert tight > 0.1 and loose == 0
