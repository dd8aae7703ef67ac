"""The optimal set of capped weights: who is in it, and what only the proportional member does."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from gmc_core.estimators import gmc_weights, self_normalized_weights, tic_weights, water_filling_weights
from gmc_core.theory.optimal_set import distortion, in_optimal_set, kl_from_ratio, optimal_line, worst_shrink
from gmc_core.theory.worst_case import class_optimum_lp

FOUR = torch.tensor([4.0, 1.6, 0.6, 0.2], dtype=torch.float64)  # M = 1.6, c = 1.2
groups = st.lists(st.floats(0.02, 20.0), min_size=2, max_size=9).map(lambda r: torch.tensor(r, dtype=torch.float64))


def test_group_of_four_by_hand():
    log_ratio = FOUR.log()
    expected = {
        "gmc": ([3.0, 1.2, 0.45, 0.15], 0.4, True),
        "water_filling": ([2.4, 1.6, 0.6, 0.2], 0.4, True),
        "truncate": ([1.2, 1.2, 0.6, 0.2], 0.8, False),
        "mask": ([0.0, 0.0, 0.6, 0.2], 1.4, False),
        "snis": ([2.5, 1.0, 0.375, 0.125], 0.6, False),
    }
    weights = {
        "gmc": gmc_weights(log_ratio),
        "water_filling": water_filling_weights(log_ratio),
        "truncate": tic_weights(log_ratio, variant="truncate"),
        "mask": tic_weights(log_ratio, variant="mask"),
        "snis": self_normalized_weights(log_ratio),
    }
    for name, (by_hand, least, inside) in expected.items():
        assert_close(weights[name], torch.tensor(by_hand, dtype=torch.float64))
        assert float(distortion(FOUR, weights[name])) == pytest.approx(least)
        assert bool(in_optimal_set(FOUR, weights[name])) is inside, name


@settings(max_examples=40, deadline=None)
@given(ratio=groups, epsilon=st.sampled_from([0.0, 0.2, 1.0]))
def test_members_reach_the_linear_programs_optimum(ratio, epsilon):
    optimum = class_optimum_lp(ratio.numpy(), epsilon)
    assert optimum.value == pytest.approx(max(float(ratio.mean()) - 1 - epsilon, 0.0), abs=1e-7)
    for weight in (gmc_weights(ratio.log(), epsilon), water_filling_weights(ratio.log(), epsilon)):
        assert bool(in_optimal_set(ratio, weight, epsilon))
        assert float(distortion(ratio, weight)) == pytest.approx(optimum.value, abs=1e-7)
    assert bool(in_optimal_set(ratio, torch.tensor(optimum.weight), epsilon))


def test_only_the_mean_and_the_box_decide_membership():
    assert bool(in_optimal_set(FOUR, torch.tensor([4.0, 0.2, 0.5, 0.1], dtype=torch.float64)))
    assert not bool(in_optimal_set(FOUR, torch.tensor([4.1, 0.1, 0.5, 0.1], dtype=torch.float64)))  # above r
    assert not bool(in_optimal_set(FOUR, torch.tensor([4.0, 0.2, 0.5, 0.0], dtype=torch.float64)))  # mean too small
    small = FOUR / 2  # M = 0.8: the cap is not active and only r itself is optimal
    assert bool(in_optimal_set(small, small)) and not bool(in_optimal_set(small, small * 0.99))


@settings(max_examples=40, deadline=None)
@given(ratio=groups, seed=st.integers(0, 10_000))
def test_proportional_member_is_least_in_divergence_and_worst_shrink(ratio, seed):
    """Against random members of the optimal set: pointwise capped shares scaled to the right mean."""
    ratio = ratio / ratio.mean() * 2.0  # mass 2: the cap is active
    gmc = gmc_weights(ratio.log())
    generator = torch.Generator().manual_seed(seed)
    share = torch.rand(ratio.shape, generator=generator, dtype=torch.float64)
    kept = (ratio * share).mean()  # move from share * r towards 0 or towards r until the mean is c
    weight = ratio * share * (1.2 / kept) if kept > 1.2 else ratio - (ratio - ratio * share) * (0.8 / (2.0 - kept))
    assert bool(in_optimal_set(ratio, weight))
    assert float(kl_from_ratio(ratio, gmc)) <= float(kl_from_ratio(ratio, weight)) + 1e-9
    assert float(worst_shrink(ratio, gmc)) <= float(worst_shrink(ratio, weight)) + 1e-9
    filling = water_filling_weights(ratio.log())
    assert float(filling.square().mean()) <= float(weight.square().mean()) + 1e-9


def test_line_stays_in_the_optimal_set_and_passes_both_points():
    gmc, filling = gmc_weights(FOUR.log()), water_filling_weights(FOUR.log())
    position, line = optimal_line(FOUR, filling, gmc, steps=9)
    assert bool(in_optimal_set(FOUR, line).all())
    assert_close(line[0], filling)
    assert float(position[-1]) == pytest.approx((4.0 - 2.4) / 0.6)  # until rollout 1 keeps everything
    assert_close(filling + (gmc - filling), gmc)
    nearest = line[(position - 1).abs().argmin()]
    assert float((nearest - gmc).abs().max()) < 0.25
    with pytest.raises(ValueError, match="two different weights"):
        optimal_line(FOUR / 2, FOUR / 2, FOUR / 2)
    with pytest.raises(ValueError, match="0 <= w <= r"):
        optimal_line(FOUR, FOUR * 1.1, gmc)


def test_rollouts_of_ratio_zero_do_not_count_in_the_worst_shrink():
    assert float(worst_shrink(torch.tensor([2.0, 0.0]), torch.tensor([1.5, 0.0]))) == pytest.approx(0.25)
