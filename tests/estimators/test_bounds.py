"""Closed forms: golden numbers of the theory, exponents of the tuned terms, bad input."""

import itertools
import math

import pytest
import torch

from gmc_core.estimators.bounds import (
    DelaySetting,
    biased_sgd_bound,
    bounded_ratio_excess_bound,
    excess_bound,
    group_size_for_excess,
    group_size_heuristic,
    scarf_bound,
    worst_case_excess,
)
from gmc_core.estimators.two_outcomes import TwoOutcomes


def slope(x, y):
    x, y = (torch.tensor(z, dtype=torch.float64).log() for z in (x, y))
    x = x - x.mean()
    return float((x * (y - y.mean())).sum() / (x * x).sum())


def test_scarf_is_attained_by_its_two_point_law_and_never_above_chebyshev():
    for v, epsilon in ((0.01, 0.2), (1.0, 0.2), (1e-6, 0.02)):
        root = math.sqrt(v + epsilon**2)
        high = 1 + epsilon + root  # the law {c - root, c + root} with mean 1 has variance v
        p = (1 - (1 + epsilon - root)) / (2 * root)
        assert scarf_bound(v, epsilon) == pytest.approx(p * (high - 1 - epsilon), rel=1e-9)
        assert scarf_bound(v, epsilon) <= v / (4 * epsilon)
    assert scarf_bound(1e-20, 0.2) == pytest.approx(1e-20 / 0.8, rel=1e-9)  # no cancellation
    assert scarf_bound(0.0, 0.0) == 0.0


def test_tensors_broadcast():
    v = torch.tensor([0.1, 1.0], dtype=torch.float64)
    torch.testing.assert_close(
        excess_bound("gmc", v, torch.tensor([[8.0], [16.0]], dtype=torch.float64)),
        torch.tensor([[scarf_bound(x / g, 0.2) for x in (0.1, 1.0)] for g in (8, 16)], dtype=torch.float64),
    )


def test_order_of_the_bias_bounds():
    for v in (0.01, 0.4, 3.0):
        gmc, truncate, mask = (excess_bound(name, v, 8) for name in ("gmc", "tic_truncate", "tic_mask"))
        assert gmc < truncate < mask
        assert excess_bound("gmc", v, 1) == truncate


def test_two_outcomes_golden_numbers():
    case = TwoOutcomes(current=0.6, behavior=0.3, baseline=0.5)
    assert case.chi_square == pytest.approx(0.429, abs=5e-4)
    for G in (1, 8, 64):
        assert case.moments("tic_truncate", G).bias == pytest.approx(-0.048, rel=1e-12)
        assert case.moments("tic_mask", G).bias == pytest.approx(-0.12, rel=1e-12)
    assert case.fixed_bias("tic_truncate") == pytest.approx(-0.048, rel=1e-12)
    assert case.fixed_bias("tic_mask") == pytest.approx(-0.12, rel=1e-12)
    bias = {G: -case.moments("gmc", G).bias for G in (8, 16, 32, 64, 128, 256, 512)}
    golden = {8: 6.33e-3, 16: 2.07e-3, 32: 5.12e-4, 64: 5.78e-5, 128: 1.50e-6, 256: 2.24e-9, 512: 1.17e-14}
    for G, value in golden.items():
        assert bias[G] == pytest.approx(value, rel=0.02)
    local = [math.log(bias[2 * G] / bias[G]) / math.log(2) for G in (8, 256)]
    assert local == pytest.approx([-1.61, -17.54], abs=0.03)  # steepening: exponential, not -1


def test_gmc_bias_decays_at_the_large_deviation_rate():
    case = TwoOutcomes()
    assert case.decay_rate() == pytest.approx(0.0436, abs=1e-4)
    excess = [case.moments("gmc", G).excess * G**1.5 for G in (256, 512)]
    assert -math.log(excess[1] / excess[0]) / 256 == pytest.approx(case.decay_rate(), rel=0.02)
    assert TwoOutcomes(current=0.31, behavior=0.3).fixed_bias("tic_mask") == 0.0  # ratio below the cap
    assert TwoOutcomes(current=0.31, behavior=0.3).decay_rate() == math.inf


def test_snis_bias_is_its_constant_over_g():
    case = TwoOutcomes()
    sizes = (64, 128, 256, 512)
    bias = [abs(case.moments("snis", G).bias) for G in sizes]
    assert slope(sizes, bias) == pytest.approx(-1.005, abs=0.01)
    assert case.snis_constant() == pytest.approx(0.0343, abs=1e-4)
    assert 512 * case.moments("snis", 512).bias == pytest.approx(case.snis_constant(), rel=0.01)
    assert abs(case.moments("snis", 8).bias) == pytest.approx(0.0046, abs=5e-5)  # smaller than GMC's .0063


def test_bernstein_bound_holds_and_is_exponential():
    case = TwoOutcomes()
    ratio = [
        bounded_ratio_excess_bound(case.chi_square, case.ratios[0], G) / case.moments("gmc", G).excess
        for G in (8, 16, 32, 64, 128, 256, 512)
    ]
    assert min(ratio) == pytest.approx(7.03, abs=0.05)
    assert bounded_ratio_excess_bound(case.chi_square, case.ratios[0], 512) < excess_bound("gmc", case.chi_square, 512)


SETTING = DelaySetting(delay=16, gap=0.5, smoothness=1, advantage=1, score=1, overlap=1)


def test_biased_sgd_bound():
    assert biased_sgd_bound(0.5, 0.1, 100, 1, 1.44, 0.01) == pytest.approx(0.1 + 0.144 + 0.01)


def test_delay_part_falls_like_group_size_to_minus_two_fifths():
    sizes = (4, 16, 64, 256)
    parts = [SETTING.tuned_bound(1e4, G, noise=False) for G in sizes]
    assert slope(sizes, [p.value for p in parts]) == pytest.approx(-0.4, abs=1e-6)
    assert slope(sizes, [p.step_size for p in parts]) == pytest.approx(0.4, abs=1e-6)


@pytest.mark.parametrize(
    ("estimator", "in_steps", "in_delay", "in_epsilon"),
    [("gmc", -0.8, 0.8, -0.4), ("tic_truncate", -0.8, 0.8, -0.4), ("tic_mask", -0.8, 0.8, -0.8),
     ("uncorrected", -2 / 3, 2 / 3, 0.0)],
)  # fmt: skip
def test_exponents_of_the_tuned_delay_term(estimator, in_steps, in_delay, in_epsilon):
    """[5b]"""

    def value(steps=1e4, delay=16, epsilon=0.2):
        return DelaySetting(delay=delay).tuned_bound(steps, 8, epsilon, estimator=estimator, noise=False).value

    steps, delays, epsilons = (1e3, 1e4, 1e5), (4, 16, 64), (1e-5, 2e-5, 4e-5)  # B = (1 + eps) A S: eps small
    assert slope(steps, [value(steps=T) for T in steps]) == pytest.approx(in_steps, abs=1e-6)
    assert slope(delays, [value(delay=d) for d in delays]) == pytest.approx(in_delay, abs=1e-6)
    assert slope(epsilons, [value(epsilon=e) for e in epsilons]) == pytest.approx(in_epsilon, abs=1e-3)


def test_total_tuned_bound_is_flat_in_the_group_size():
    """[5c] -0.08 at T = 100, |slope| <= .001 from T = 1e4 on."""
    sizes = (4, 16, 64, 256)
    found = {T: slope(sizes, [SETTING.tuned_bound(T, G).value for G in sizes]) for T in (1e2, 1e4, 1e6, 1e8)}
    assert found[1e2] == pytest.approx(-0.081, abs=1e-3)
    assert all(abs(found[T]) <= 0.001 for T in (1e4, 1e6, 1e8))
    total = SETTING.tuned_bound(1e2, 4)
    assert total.value == pytest.approx(0.34, abs=0.005)
    assert total.value == pytest.approx(total.sgd + total.delay_bias)


@pytest.mark.parametrize("estimator", ["gmc", "tic_truncate", "tic_mask", "uncorrected"])
def test_tuned_step_is_the_minimiser_and_the_closed_form_an_upper_bound(estimator):
    best = SETTING.tuned_bound(1e4, 8, estimator=estimator)
    C, p = SETTING.bias_coefficient(estimator, 8)
    B2 = SETTING.gradient_bound() ** 2
    for factor in (0.9, 0.99, 1.01, 1.1):
        eta = best.step_size * factor
        assert biased_sgd_bound(0.5, eta, 1e4, 1, B2, C * eta**p) > best.value
    step, bound = SETTING.closed_form_bound(1e4, 8, estimator=estimator)
    assert best.value <= biased_sgd_bound(0.5, step, 1e4, 1, B2, C * step**p) <= bound
    if estimator == "gmc":  # [5d]
        assert biased_sgd_bound(0.5, step, 1e4, 1, B2, C * step**p) == pytest.approx(0.0240, abs=5e-5)
        assert bound == pytest.approx(0.0304, abs=5e-5)


@pytest.mark.parametrize(
    ("delay", "group", "start", "end"),
    [(16, 4, 1.39e3, 5.62e4), (16, 16, 2.22e4, 8.86e3), (256, 16, 3.56e5, 1.44e7), (256, 64, 5.69e6, 2.27e6)],
)
def test_window_golden_numbers(delay, group, start, end):
    """[5e], with T* / T_lo = (A^2 S^2 kappa^2 tau rho_0^3 / (16 G^2 eps^2 L B))^(5/3)."""
    setting = DelaySetting(delay=delay, overlap=50, overlap_radius=50**-0.5)
    assert setting.window(group) == pytest.approx((start, end), rel=5e-3)
    low, high = setting.window(group)
    assert high / low == pytest.approx((setting.largest_visible_group() / group) ** (10 / 3), rel=1e-9)


def test_group_size_needed():
    G = group_size_for_excess(0.43, 0.01)
    assert scarf_bound(0.43 / G, 0.2) == pytest.approx(0.01, rel=1e-9)
    assert group_size_heuristic(1.0) == pytest.approx(math.exp(1 + 1.28 * math.sqrt(2)))
    log_size = [math.log(group_size_heuristic(kl)) for kl in (0.5, 1.0, 1.5)]
    assert [2 * (b - a) for a, b in itertools.pairwise(log_size)] == pytest.approx([2.06, 1.81], abs=0.005)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: scarf_bound(-0.1, 0.2), "must be >= 0"),
        (lambda: scarf_bound(0.1, -0.2), "epsilon must be >= 0"),
        (lambda: excess_bound("tic_mask", 0.1, 8, 0.0), "epsilon must be > 0"),
        (lambda: excess_bound("ppo_clip", 0.1, 8), "known: gmc"),
        (lambda: excess_bound("gmc", 0.1, 0), "group_size"),
        (lambda: worst_case_excess("tic_mask", 0.5, 0.2), "worst_case_excess_lp"),
        (lambda: DelaySetting(delay=0), "DelaySetting.delay must be > 0"),
        (lambda: SETTING.bias_coefficient("snis", 8), "known: gmc"),
        (lambda: TwoOutcomes(current=0.3, behavior=0.6), "0 < behavior < current < 1"),
        (lambda: TwoOutcomes().moments("ppo_clip", 8), "known: gmc"),
        (lambda: bounded_ratio_excess_bound(0.4, 0.9, 8), "max_ratio"),
        (lambda: group_size_for_excess(0.4, 0.0), "tolerance"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
