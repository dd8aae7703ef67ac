"""Linear programs against the closed forms they check."""

import numpy as np
import pytest
import torch

from gmc_core.estimators.bounds import worst_case_excess
from gmc_core.estimators.weights_group import gmc_weights, water_filling_weights
from gmc_core.theory.worst_case import class_optimum_lp, group_mass_adversary, worst_case_excess_lp


def slope(x, y):
    return np.polyfit(np.log(x), np.log(y), 1)[0]


@pytest.mark.parametrize("estimator", ["tic_truncate", "tic_mask"])
@pytest.mark.parametrize(("v", "epsilon"), [(1e-4, 0.2), (1e-6, 0.02), (0.15, 0.2), (1e-3, 0.5)])
def test_suprema_equal_the_closed_forms(estimator, v, epsilon):
    found = worst_case_excess_lp(estimator, v, epsilon)
    exact = worst_case_excess(estimator, v, epsilon)
    assert found.value == pytest.approx(exact, rel=1e-4)
    assert found.value <= exact * (1 + 1e-6)  # a grid cannot do better than all laws
    p, r = found.probability, found.support
    assert (p.sum(), p @ r, p @ (r - 1) ** 2) == pytest.approx((1, 1, v), rel=1e-4)


def test_nonnegative_ratios_bind_beyond_the_closed_form():
    from gmc_core.estimators.bounds import scarf_bound

    found = worst_case_excess_lp("tic_truncate", 2.0, 0.2)  # the law with an atom at 0: E(r - c)_+ = 1 - c/(1 + v)
    assert found.value == pytest.approx(1 - 1.2 / 3, rel=1e-4)
    assert found.value < scarf_bound(2.0, 0.2)
    with pytest.raises(ValueError, match="use the linear program"):
        worst_case_excess("tic_truncate", 2.0, 0.2)


def test_slopes_of_the_squared_worst_case_in_epsilon():
    """[4c] -2.00 and -3.91: masking costs epsilon^-4, truncating epsilon^-2."""
    epsilons = (0.02, 0.04, 0.08)
    found = {
        name: slope(epsilons, [worst_case_excess_lp(name, 1e-6, e).value ** 2 for e in epsilons])
        for name in ("tic_truncate", "tic_mask")
    }
    assert found["tic_truncate"] == pytest.approx(-2.00, abs=0.005)
    assert found["tic_mask"] == pytest.approx(-3.91, abs=0.01)


def test_values_and_slope_in_chi_square():
    """[4a]"""
    values = (1e-4, 2e-4, 4e-4)
    for name, at, in_v in (("tic_truncate", 1.249e-4, 0.999), ("tic_mask", 2.992e-3, 0.995)):
        worst = [worst_case_excess_lp(name, v, 0.2).value for v in values]
        assert worst[0] == pytest.approx(at, rel=2e-3)
        assert slope(values, worst) == pytest.approx(in_v, abs=0.002)


def test_adversary_that_knows_the_group_size():
    """[4b] 1/G is minimax-tight."""
    sizes = (4, 8, 16, 32, 64)
    excess = np.array([group_mass_adversary(G, 1e-3) for G in sizes])
    assert excess / (1e-3 / (4 * np.array(sizes) * 0.2)) == pytest.approx(
        [0.998, 0.999, 0.9995, 0.9997, 0.9999], abs=1e-3
    )
    assert slope(sizes, excess) == pytest.approx(-0.999, abs=0.001)


@pytest.mark.parametrize("seed", range(10))
def test_optimum_over_the_class_is_the_excess_mass(seed):
    """[1a] Proposition 2, and GMC and water-filling attain it."""
    rng = np.random.default_rng(seed)
    ratio, epsilon = np.exp(rng.normal(0, 1.2, rng.integers(2, 9))), rng.uniform(0.02, 1.0)
    optimum = class_optimum_lp(ratio, epsilon)
    assert optimum.value == pytest.approx(max(ratio.mean() - 1 - epsilon, 0), abs=1e-9)
    assert optimum.weight.mean() <= 1 + epsilon + 1e-9
    for rule in (gmc_weights, water_filling_weights):
        weight = rule(torch.tensor(np.log(ratio)), epsilon).numpy()
        assert np.abs(ratio - weight).mean() == pytest.approx(optimum.value, abs=1e-9)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: worst_case_excess_lp("gmc", 0.1), "tic_truncate and tic_mask"),
        (lambda: worst_case_excess_lp("tic_mask", 0.0), "must be > 0"),
        (lambda: class_optimum_lp(np.ones((2, 2))), "one group"),
        (lambda: class_optimum_lp(np.ones(2), -0.1), "epsilon"),
        (lambda: group_mass_adversary(0, 0.1), "group_size >= 1"),
        (lambda: group_mass_adversary(1, 5.0, 0.2), "too large"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
