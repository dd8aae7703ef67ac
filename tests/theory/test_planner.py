"""The planner: golden numbers, its inverses, its fit, and its prediction beside what two language models measured."""

import math

import pytest

from gmc_core.theory.planner import (
    Drift,
    largest_delay,
    largest_kl,
    largest_length,
    plan,
    predicted_excess,
)
from gmc_core.theory.ratio_laws import LognormalRatio

DRIFT = Drift(kl=0.03, delay_power=1.5, delay=4, length=200)


def test_the_largest_kl_is_where_the_group_size_needed_is_that_of_the_theory():
    """docs/theory.md section 6: E(M - c)+ = .1 at KL .5, 1 and 2 nats needs G of about 8, 28 and 164."""
    for size, kl in ((8, 0.5), (28, 1.0), (164, 2.0)):
        assert largest_kl(0.1, size) == pytest.approx(kl, rel=0.06)


def test_a_single_ratio_is_exact_and_groups_lose_less():
    assert predicted_excess(0.5, 1).value == pytest.approx(LognormalRatio.from_kl(0.5).truncate_excess(), rel=1e-12)
    values = [predicted_excess(0.5, size).value for size in (1, 4, 16, 64)]
    assert values == sorted(values, reverse=True) and predicted_excess(0, 16).value == 0.0
    assert predicted_excess(0.5, 16, 0.5).value < predicted_excess(0.5, 16, 0.1).value


def test_drift_follows_its_powers():
    assert DRIFT.at(4) == pytest.approx(0.03)
    assert DRIFT.at(16) == pytest.approx(0.03 * 8)
    assert DRIFT.at(4, 800) == pytest.approx(0.12)
    assert Drift.from_log_ratio_std(0.3, delay_power=1.5, delay=4, length=200).at(4) == pytest.approx(0.045)


def test_a_power_law_is_found_again():
    delays = [1, 4, 16, 64]
    found = Drift.fit(delays, [0.002 * k**1.3 for k in delays], length=14)
    assert found.delay_power == pytest.approx(1.3) and found.length == 14
    assert [found.at(k) for k in delays] == pytest.approx([0.002 * k**1.3 for k in delays])


@pytest.mark.parametrize("size", [4, 64])
def test_at_the_largest_delay_and_length_the_target_is_just_met(size):
    for target in (0.02, 0.2):
        delay = largest_delay(DRIFT, target, size)
        assert predicted_excess(DRIFT.at(delay), size).value == pytest.approx(target, rel=0.01)
        length = largest_length(DRIFT, target, size, delay=10)
        assert predicted_excess(DRIFT.at(10, length), size).value == pytest.approx(target, rel=0.01)
        # half the drift per update: the delay grows by 2^(1/p), the length by 2
        slower = Drift(kl=0.015, delay_power=1.5, delay=4, length=200)
        assert largest_delay(slower, target, size) == pytest.approx(delay * 2 ** (1 / 1.5), rel=1e-6)
        assert largest_length(slower, target, size, delay=10) == pytest.approx(2 * length, rel=1e-6)


def test_a_plan_holds_every_combination_and_is_monotone():
    choices = plan(DRIFT, 0.06, delays=(4, 16, 64), group_sizes=(4, 64), lengths=(100, 400))
    assert len(choices) == 12 and [c.delay for c in choices[:4]] == [4] * 4
    kept = {(c.delay, c.length, c.group_size): c.keeps for c in choices}
    value = {(c.delay, c.length, c.group_size): c.excess.value for c in choices}
    for delay, length, size in kept:
        assert value[delay, length, 64] <= value[delay, length, size] <= value[64, 400, size] * (1 + 1e-9)
        assert kept[delay, length, size] == (value[delay, length, size] <= 0.06)
    assert any(kept.values()) and not all(kept.values())
    for size in (4, 64):
        limit = largest_delay(DRIFT, 0.06, size, 400)
        assert all(kept[delay, 400, size] == (delay <= limit) for delay in (4, 16, 64))


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match=r"Drift\.kl is 0; expected a finite number above 0"):
        Drift(kl=0, delay_power=1)
    with pytest.raises(ValueError, match=r"Drift\.delay_power is nan"):
        Drift(kl=1.0, delay_power=math.nan)
    with pytest.raises(ValueError, match="a positive KL at each of two or more positive delays"):
        Drift.fit([1, 4], [0.01, -0.001])
    for bad in (0, 1, 1.5):
        with pytest.raises(ValueError, match="a share of the gradient, between 0 and 1"):
            largest_kl(bad, 8)
        with pytest.raises(ValueError, match="a share of the gradient, between 0 and 1"):
            plan(DRIFT, bad, delays=(1,), group_sizes=(4,))
