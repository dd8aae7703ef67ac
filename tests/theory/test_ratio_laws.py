"""Ratio laws: exact excesses against quadrature, the conditional estimator against plain sampling, golden numbers."""

import math

import numpy as np
import pytest
from scipy.integrate import quad

from gmc_core.estimators.bounds import scarf_bound
from gmc_core.theory.ratio_laws import LognormalRatio, LomaxRatio, group_size_needed, mass_excess

LAWS = [LognormalRatio(0.25), LognormalRatio(2.0), LomaxRatio(2.5), LomaxRatio(3.0, drift=0.3)]


def rng():
    return np.random.default_rng(3)


def slope(x, y):
    return np.polyfit(np.log(x), np.log(y), 1)[0]


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_excesses_agree_with_the_survival_function(law):
    assert law.tail_mean(0.0 if isinstance(law, LomaxRatio) else 1e-300) == pytest.approx(1, rel=1e-9)  # E r = 1
    upper = quad(law.survival, 1.2, math.inf, limit=200)[0]
    assert law.truncate_excess(0.2) == pytest.approx(upper, rel=1e-6)
    assert law.mask_excess(0.2) == pytest.approx(upper + 1.2 * law.survival(1.2), rel=1e-6)


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_sampling_has_the_stated_mean_and_tail(law):
    ratio = law.sample((200_000,), rng())
    assert (ratio >= 0).all()
    assert ratio.mean() == pytest.approx(1, abs=0.02)
    assert (ratio > 1.2).mean() == pytest.approx(law.survival(1.2), abs=0.005)


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_conditional_estimator_agrees_with_plain_sampling(law):
    G = 8
    found = mass_excess(law, G, samples=4000, generator=rng())
    plain = np.maximum(law.sample((100_000, G), np.random.default_rng(9)).mean(1) - 1.2, 0)
    error = math.hypot(found.standard_error, plain.std() / math.sqrt(plain.size))
    assert abs(found.value - plain.mean()) < 4 * error
    assert found.standard_error < plain.std() / math.sqrt(4000)  # conditioning helps
    assert found.interval[0] < found.value < found.interval[1]


def test_one_rollout_is_exact():
    law = LognormalRatio(1.0)
    assert mass_excess(law, 1, generator=rng()).value == law.truncate_excess()
    assert mass_excess(law, 1, generator=rng()).standard_error == 0.0


@pytest.mark.parametrize(
    ("kl", "gmc", "truncate", "mask"),
    [(0.125, 0.018, 0.131, 0.454), (0.5, 0.104, 0.328, 0.625), (1, 0.208, 0.477, 0.718), (2, 0.384, 0.653, 0.818),
     (4, 0.637, 0.828, 0.911)],
)  # fmt: skip
def test_lognormal_golden_numbers(kl, gmc, truncate, mask):
    """[6g], G = 8"""
    law = LognormalRatio.from_kl(kl)
    assert law.kl == kl
    found = mass_excess(law, 8, samples=20_000, generator=rng())
    assert found.value == pytest.approx(gmc, abs=5e-4 + 3 * found.standard_error)
    assert (law.truncate_excess(), law.mask_excess()) == pytest.approx((truncate, mask), abs=5e-4)
    assert found.value < scarf_bound(law.chi_square / 8, 0.2)


def test_gaussian_drift_is_not_polynomial():
    """[4d] local slopes of E(r - c)_+ in the drift grow without limit; the worst case has slope 2."""
    drift = np.array([0.4, 0.2, 0.1, 0.05, 0.025])
    excess = np.array([LognormalRatio(d**2).truncate_excess() for d in drift])
    local = np.diff(np.log(excess)) / np.diff(np.log(drift))
    assert local == pytest.approx([2.1, 3.9, 9.7, 31.6], abs=0.06)


@pytest.mark.parametrize("alpha", [2.1, 3.0])
def test_lomax_slopes_are_the_tail_index(alpha):
    """[4e]"""
    drift, epsilon = np.array([1e-2, 1e-3, 1e-4]), np.array([0.01, 0.02, 0.04])
    assert slope(drift, [LomaxRatio(alpha, d).truncate_excess() for d in drift]) == pytest.approx(alpha, abs=0.1)
    assert slope(drift, [LomaxRatio(alpha, d).mask_excess() for d in drift]) == pytest.approx(alpha, abs=0.1)
    law = LomaxRatio(alpha, 1e-5)
    assert slope(epsilon, [law.truncate_excess(e) for e in epsilon]) == pytest.approx(1 - alpha, abs=0.02)
    assert slope(epsilon, [law.mask_excess(e) for e in epsilon]) == pytest.approx(-alpha, abs=0.06)


def test_heavy_tails_approach_one_big_jump():
    """[6f] alpha = 1.5: chi^2 infinite, the bias still vanishes, slope -> -.5."""
    law = LomaxRatio(1.5)
    assert law.chi_square == math.inf
    excess = [mass_excess(law, G, samples=2000, generator=rng()).value for G in (256, 1024, 4096)]
    assert excess == pytest.approx([0.086, 0.047, 0.024], rel=0.05)
    assert excess[-1] == pytest.approx(law.one_big_jump(4096), rel=0.1)
    assert slope((256, 1024, 4096), excess) == pytest.approx(-0.46, abs=0.04)


@pytest.mark.parametrize(("kl", "group_size"), [(0.5, 8.5), (1, 28), (2, 164)])
def test_group_size_needed(kl, group_size):
    """[6h] E(M - c)_+ <= .1"""
    found = group_size_needed(LognormalRatio.from_kl(kl), samples=4000, generator=rng())
    assert found.group_size == pytest.approx(group_size, rel=0.06)
    assert found.low < found.group_size < found.high


def test_group_size_needed_at_the_ends():
    assert group_size_needed(LognormalRatio(0.01), generator=rng()).group_size == 1.0
    with pytest.raises(RuntimeError, match="raise `largest`"):
        group_size_needed(LognormalRatio(8.0), largest=50, samples=200, generator=rng())


def test_runs_are_a_function_of_the_generator():
    law = LognormalRatio(1.0)
    assert mass_excess(law, 8, samples=100, generator=rng()) == mass_excess(law, 8, samples=100, generator=rng())


@pytest.mark.parametrize(
    "call",
    [
        lambda: LognormalRatio(0.0),
        lambda: LomaxRatio(1.0),
        lambda: LomaxRatio(2.0, drift=1.5),
        lambda: mass_excess(LognormalRatio(1.0), 0, generator=rng()),
        lambda: mass_excess(LognormalRatio(1.0), 8, -0.1, generator=rng()),
        lambda: group_size_needed(LognormalRatio(1.0), 0.0, generator=rng()),
    ],
)
def test_bad_input_is_refused(call):
    with pytest.raises(ValueError, match="must"):
        call()
