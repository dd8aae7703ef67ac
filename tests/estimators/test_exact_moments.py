"""Exact moments of every estimator: two enumerations agree, golden numbers, the inequalities of docs/theory.md."""

import math

import pytest
import torch

from gmc_core.estimators.bounds import excess_bound, gmc_mse_bound
from gmc_core.estimators.enumerable import EnumerablePolicy, bandit_policy, chi_square_divergence, response_space
from gmc_core.estimators.exact_moments import ACROSS_GROUPS, enumerate_groups, exact_moments
from gmc_core.estimators.two_outcomes import TwoOutcomes
from gmc_core.estimators.weights import ESTIMATORS, make_estimator

SPACE = response_space(2, 3)  # 4 responses of 1 to 3 tokens
TWO = (
    bandit_policy(torch.tensor([0.6, 0.4], dtype=torch.float64)),
    bandit_policy(torch.tensor([0.3, 0.7], dtype=torch.float64)),
)
SUCCESS = torch.tensor([1.0, 0.0], dtype=torch.float64)


def policies(seed, spread=0.8, space=SPACE):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(space.contexts, space.vocabulary, generator=generator, dtype=torch.float64)
    drift = spread * torch.randn(logits.shape, generator=generator, dtype=torch.float64)
    reward = torch.rand(space.responses, generator=generator, dtype=torch.float64)
    return EnumerablePolicy(space, logits), EnumerablePolicy(space, logits + drift), reward


def test_multisets_carry_the_multinomial_weights():
    p = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    for ordered, number in ((False, 15), (True, 81)):
        index, log_multiplicity = (torch.cat(x) for x in zip(*enumerate_groups(3, 4, ordered=ordered), strict=True))
        assert index.shape == (number, 4)
        total = (log_multiplicity.exp() * p[index].prod(-1)).sum()
        assert total.item() == pytest.approx(1, rel=1e-12)


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
@pytest.mark.parametrize("advantage", ["leave_one_out", 0.4])
def test_multisets_and_ordered_groups_agree_for_every_estimator(name, advantage):
    """The weights are permutation-equivariant, so a group may be counted as a multiset."""
    current, behavior, reward = policies(7)
    few, all_ = (
        exact_moments(make_estimator(name), current, behavior, reward, 3, advantage=advantage, ordered=ordered)
        for ordered in (name in ACROSS_GROUPS, True)
    )
    torch.testing.assert_close(few.mean, all_.mean, rtol=1e-10, atol=1e-12)
    for field in ("second_moment", "variance", "bias", "distortion", "rollout_bound"):
        assert getattr(few, field) == pytest.approx(getattr(all_, field), rel=1e-9, abs=1e-12), field


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
def test_exact_mean_is_what_sampling_converges_to(name):
    current, behavior, reward = policies(11)
    estimator, G = make_estimator(name), 2
    n = 400 if name in ACROSS_GROUPS else 4000
    exact = exact_moments(estimator, current, behavior, reward, G, advantage=0.4)
    index = behavior.sample(n * G, torch.Generator().manual_seed(0)).reshape(n, G)
    logp, logb, mask, adv = (
        current.token_log_probs(),
        behavior.token_log_probs(),
        SPACE.mask[index],
        reward[index] - 0.4,
    )
    if name in ACROSS_GROUPS:  # each group is a step of its own
        rows = zip(logp[index], logb[index], mask, adv, strict=True)
        weight = torch.stack([estimator(*(x[None] for x in row))[0] for row in rows])
    else:
        weight = estimator(logp[index], logb[index], mask, adv)
    if estimator.normalizer == "sequence_mean_token_mean":
        weight = weight / SPACE.lengths[index].unsqueeze(-1)
    batch = EnumerablePolicy(SPACE, current.logits.expand(n, 3, 2))
    g = batch.surrogate_gradient(index, (adv / G).unsqueeze(-1) * weight)
    error = (g.mean(0) - exact.mean).abs()
    assert (error <= 5 * g.std(0) / math.sqrt(n) + 1e-12).all()
    assert g.square().sum((-1, -2)).mean().item() == pytest.approx(exact.second_moment, rel=0.25)


@pytest.mark.parametrize("G", [1, 3])
def test_full_importance_sampling_is_unbiased(G):
    current, behavior, reward = policies(3)
    moments = exact_moments(make_estimator("is"), current, behavior, reward, G, advantage=0.3)
    assert moments.bias < 1e-12
    assert moments.distortion < 1e-12


def test_centred_advantages_scale_the_gradient_by_one_minus_one_over_g():
    """Section 7: E g = (1 - 1/G) grad J, also off-policy; leave-one-out removes the factor."""
    current, behavior, reward = policies(5)
    for G in (2, 4):
        centred, loo = (
            exact_moments(make_estimator("is"), current, behavior, reward, G, advantage=kind)
            for kind in ("center", "leave_one_out")
        )
        torch.testing.assert_close(centred.mean, (1 - 1 / G) * centred.target, rtol=1e-10, atol=1e-12)
        assert loo.bias < 1e-12


def test_std_normalisation_is_biased_at_first_order_in_the_drift():
    """Section 7 [7b]: the gradient's scale relative to on-policy changes linearly with q - p under full IS weights."""

    def scale(p, q):
        pair = [bandit_policy(torch.tensor([x, 1 - x], dtype=torch.float64)) for x in (p, q)]
        return exact_moments(make_estimator("is"), *pair, SUCCESS, 16, advantage="std").mean[0, 0].item()

    change = [abs(scale(0.3, 0.3 - d) / scale(0.3, 0.3) - 1) for d in (0.0025, 0.01)]
    assert change == pytest.approx([0.0021, 0.0087], abs=2e-4)
    assert math.log(change[1] / change[0]) / math.log(4) == pytest.approx(1.02, abs=0.03)


def test_two_outcome_golden_numbers():
    for name, G, bias in (
        ("tic_truncate", 1, -0.048), ("tic_mask", 1, -0.12), ("tic_mask", 5, -0.12),
        ("gmc", 8, -6.33e-3), ("gmc", 64, -5.78e-5), ("snis", 8, 4.58e-3),
    ):  # fmt: skip
        moments = exact_moments(make_estimator(name), *TWO, SUCCESS, G, advantage=0.5)
        assert (moments.mean - moments.target)[0, 0].item() == pytest.approx(bias, rel=0.01), name


@pytest.mark.parametrize("name", ["gmc", "tic_truncate", "tic_mask", "snis", "is", "water_filling", "uncorrected"])
def test_closed_form_of_two_outcomes_equals_the_enumeration(name):
    closed = TwoOutcomes()
    for G in (1, 7):
        exact = exact_moments(make_estimator(name), *TWO, SUCCESS, G, advantage=0.5)
        moments = closed.moments(name, G)
        assert (exact.mean - exact.target)[0, 0].item() == pytest.approx(moments.bias, rel=1e-6, abs=1e-9)
        assert exact.second_moment == pytest.approx(2 * moments.second_moment, rel=1e-6)  # two logits, opposite signs


@pytest.mark.parametrize("seed", range(12))
def test_inequalities_of_sections_2_to_4(seed):
    """[2a] |bias| <= A S E D(w); [2b] ||g|| <= c A S; [2c] E D <= its bound through chi^2; [2g] the MSE of GMC."""
    generator = torch.Generator().manual_seed(100 + seed)
    G, epsilon = 2 + seed % 3, (0.05, 0.2, 0.5)[seed % 3]
    current, behavior, reward = policies(200 + seed, spread=(0.3, 1.0)[seed % 2])
    baseline = torch.rand((), generator=generator).item()
    v = chi_square_divergence(current, behavior).item()
    previous = 0.0
    for name in ("gmc", "tic_truncate", "tic_mask"):
        m = exact_moments(make_estimator(name, epsilon=epsilon), current, behavior, reward, G, advantage=baseline)
        assert m.bias <= m.rollout_bound * (1 + 1e-9) + 1e-14  # 1e-14: rounding, where no weight is changed
        assert m.rollout_bound <= m.ratio_bound * (1 + 1e-9) + 1e-14
        assert m.max_norm <= (1 + epsilon) * m.advantage_bound * m.score_bound * (1 + 1e-9)
        assert m.distortion <= excess_bound(name, v, G, epsilon) * (1 + 1e-9)
        assert m.distortion >= previous - 1e-12  # GMC <= truncate <= mask
        previous = m.distortion
        if name == "gmc":
            assert m.mse() <= gmc_mse_bound(v, G, m.advantage_bound, m.score_bound)
            filled = exact_moments(
                make_estimator("water_filling", epsilon=epsilon), current, behavior, reward, G, advantage=baseline
            )
            assert filled.distortion == pytest.approx(m.distortion, rel=1e-9, abs=1e-12)


def test_smaller_bound_is_not_smaller_bias():
    """[7e] A = 0 on the only clipped outcome: truncation is exactly unbiased, GMC, of smaller bound, is not."""
    current = bandit_policy(torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64))
    behavior = bandit_policy(torch.tensor([0.1, 0.45, 0.45], dtype=torch.float64))
    reward = torch.tensor([0.5, 1.0, 0.0], dtype=torch.float64)
    gmc, truncate = (
        exact_moments(make_estimator(name), current, behavior, reward, 4, advantage=0.5)
        for name in ("gmc", "tic_truncate")
    )
    assert gmc.bias == pytest.approx(0.0149, abs=1e-4)
    assert truncate.bias < 1e-12
    assert gmc.distortion == pytest.approx(0.223, abs=1e-3)
    assert truncate.distortion == pytest.approx(0.380, abs=1e-3)


def test_one_rollout_rules_do_not_depend_on_the_group():
    """With a fixed baseline their bias is the same for every G and their variance is 1/G of that of one rollout."""
    current, behavior, reward = policies(13)
    for name in ("tic_truncate", "ppo_clip", "vespo", "gspo"):
        one, five = (exact_moments(make_estimator(name), current, behavior, reward, G, advantage=0.4) for G in (1, 5))
        torch.testing.assert_close(one.mean, five.mean, rtol=1e-9, atol=1e-12)
        assert five.variance == pytest.approx(one.variance / 5, rel=1e-9)
        assert five.mse(3) == pytest.approx(one.bias**2 + one.variance / 15, rel=1e-9)


def test_bad_input_is_refused():
    current, behavior, reward = policies(1)
    with pytest.raises(ValueError, match="Use fewer responses"):
        next(enumerate_groups(15, 20))
    with pytest.raises(ValueError, match="one call each"):
        exact_moments(make_estimator("m2po"), current, behavior, reward, 12)
    with pytest.raises(ValueError, match="unknown normalizer"):
        exact_moments(make_estimator("gmc"), current, behavior, reward, 2, advantage=0.5, normalizer="token_mean")
    batch = EnumerablePolicy(SPACE, current.logits.expand(2, 3, 2))
    with pytest.raises(ValueError, match="one pair of policies"):
        exact_moments(make_estimator("gmc"), batch, behavior, reward, 2)
