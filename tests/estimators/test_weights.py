"""What holds for every rule of the menu, and the group-mass rules on cases done by hand."""

import dataclasses
import math

import pytest
import torch

from gmc_core import (
    ESTIMATORS,
    effective_sample_size,
    gmc_weights,
    group_mass,
    log_group_mass,
    make_estimator,
    mixture_weights,
    self_normalized_weights,
    tic_weights,
    water_filling_weights,
)
from gmc_core.estimators import (
    is_weights,
)

DEFAULTS = {
    "uncorrected": {},
    "is": {},
    "snis": {},
    "gmc": {"epsilon": 0.2},
    "tic_mask": {"epsilon": 0.2},
    "tic_truncate": {"epsilon": 0.2},
    "water_filling": {"epsilon": 0.2},
    "gspo": {"low": 3e-4, "high": 4e-4},
    "topr": {},
    "gepo": {"low": 0.2, "high": 0.2},
    "seq_mis": {"cap": 2.0},
    "ppo_clip": {"low": 0.2, "high": 0.2},
    "cispo": {"low": 1.0, "high": 0.2},
    "token_tis": {"cap": 2.0},
    "icepop": {"low": 0.5, "high": 5.0},
    "m2po": {"threshold": 0.04},
    "vespo": {"k_positive": 2.0, "lambda_positive": 3.0, "k_negative": 3.0, "lambda_negative": 2.0},
    "mixture": {"alpha": 0.2, "epsilon": 0.2},
}
ONE_ON_POLICY = sorted(set(DEFAULTS) - {"gepo"})
TOKEN_LEVEL = {"ppo_clip", "cispo", "token_tis", "icepop", "m2po"}
CAPPED_MEAN = ("gmc", "snis", "water_filling", "mixture", "tic_mask", "tic_truncate")
GMC_RATIOS = torch.tensor([0.3, 0.8, 2.5, 4.0])  # M = 1.9


def _step(scale=0.3, seed=0, shape=(5, 8, 7)):
    generator = torch.Generator().manual_seed(seed)
    current = -3 * torch.rand(shape, generator=generator) - 0.1
    behavior = current + scale * torch.randn(shape, generator=generator)
    length = torch.randint(1, shape[-1] + 1, shape[:-1], generator=generator)
    mask = torch.arange(shape[-1]) < length.unsqueeze(-1)
    advantage = torch.randn(shape[:-1], generator=generator)
    return current, behavior, mask, advantage


# The menu


def test_the_menu_is_complete_with_its_defaults():
    assert {name: dataclasses.asdict(make_estimator(name)) for name in ESTIMATORS} == DEFAULTS
    for name, kind in ESTIMATORS.items():
        assert kind.name == name and kind.level == ("token" if name in TOKEN_LEVEL else "trajectory")
        assert kind.__doc__ and dataclasses.fields(kind) is not None
        with pytest.raises(dataclasses.FrozenInstanceError):
            make_estimator(name).epsilon = 0.5
    assert ESTIMATORS["gspo"].normalizer == ESTIMATORS["gepo"].normalizer == "sequence_mean_token_mean"


@pytest.mark.parametrize("name", ONE_ON_POLICY)
@pytest.mark.parametrize("group", [1, 3, 8, 49])
def test_zero_staleness_gives_weight_exactly_one(name, group):
    current, _, mask, advantage = _step(shape=(2, group, 5))
    weight = make_estimator(name)(current, current.clone(), mask, advantage)
    assert torch.equal(weight, mask.float())


@pytest.mark.parametrize("name", list(DEFAULTS))
def test_weights_are_detached_float32_finite_and_zero_outside_the_mask(name):
    current, behavior, mask, advantage = _step(scale=2.0)
    weight = make_estimator(name)(current.requires_grad_(), behavior, mask, advantage)
    assert weight.shape == mask.shape and weight.dtype == torch.float32 and not weight.requires_grad
    assert torch.isfinite(weight).all() and (weight >= 0).all() and (weight[~mask] == 0).all()
    for dtype in (torch.float16, torch.bfloat16):
        assert make_estimator(name)(current.to(dtype), behavior.to(dtype), mask, advantage).dtype == torch.float32
    double = make_estimator(name)(current.double(), behavior.double(), mask, advantage.double())
    assert double.dtype == torch.float64
    torch.testing.assert_close(weight.double(), double, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", list(DEFAULTS))
@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf, -9999.0])
def test_masked_tokens_are_inert(name, garbage):
    current, behavior, mask, advantage = _step()
    rule = make_estimator(name)
    expected = rule(current, behavior, mask, advantage)
    dirty_current, dirty_behavior = torch.where(mask, current, garbage), torch.where(mask, behavior, garbage)
    assert torch.equal(rule(dirty_current, dirty_behavior, mask, advantage), expected)


@pytest.mark.parametrize("name", list(DEFAULTS))
@pytest.mark.parametrize("how", ["nan", "inf", "filler", "invalid", "empty"])
def test_a_rollout_left_out_is_as_if_it_had_not_been_sampled(name, how):
    current, behavior, mask, advantage = _step()
    out = torch.zeros(5, 8, dtype=torch.bool)
    out[0, 0], out[3, 5], out[3, 6] = True, True, True
    valid = None
    expected = make_estimator(name)(current, behavior, mask & ~out.unsqueeze(-1), advantage, ~out)
    if how == "invalid":
        valid = ~out
    elif how == "empty":
        mask = mask & ~out.unsqueeze(-1)
    else:
        fault = {"nan": math.nan, "inf": math.inf, "filler": -9999.0}[how]
        behavior[..., 0] = torch.where(out, fault, behavior[..., 0])
    weight = make_estimator(name)(current, behavior, mask, advantage, valid)
    assert (weight[out] == 0).all()
    assert torch.equal(weight, expected)
    # the others are weighted as in a group that never held it
    group = ~out[0]
    if name != "m2po":  # whose second moment is taken over all tokens of the step
        alone = make_estimator(name)(current[0][group], behavior[0][group], mask[0][group], advantage[0][group])
        torch.testing.assert_close(weight[0][group], alone)


@pytest.mark.parametrize("name", list(DEFAULTS))
def test_flat_interleaved_rollouts_equal_groups(name):
    current, behavior, mask, advantage = _step()
    valid = torch.rand(5, 8, generator=torch.Generator().manual_seed(3)) < 0.8
    grouped = make_estimator(name)(current, behavior, mask, advantage, valid)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(4))
    labels = torch.tensor([7, -2, 10**9, 0, 3]).repeat_interleave(8)[order]
    flat = make_estimator(name)(
        current.flatten(0, 1)[order],
        behavior.flatten(0, 1)[order],
        mask.flatten(0, 1)[order],
        advantage.flatten()[order],
        valid.flatten()[order],
        group_index=labels,
    )
    torch.testing.assert_close(flat, grouped.flatten(0, 1)[order], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", CAPPED_MEAN)
def test_the_capped_rules_stay_in_the_class_of_mean_at_most_c(name):
    current, behavior, mask, advantage = _step(scale=3.0, shape=(50, 8, 1))
    mask = torch.ones_like(mask)
    weight = make_estimator(name)(current, behavior, mask, advantage).squeeze(-1)
    assert weight.mean(-1).max() <= 1.2 * (1 + 1e-6)


# Group mass


def test_group_mass_and_effective_sample_size_by_hand():
    log_ratio = GMC_RATIOS.log()
    assert group_mass(log_ratio).item() == pytest.approx(1.9)
    assert log_group_mass(log_ratio).item() == pytest.approx(math.log(1.9))
    assert effective_sample_size(log_ratio).item() == pytest.approx(7.6**2 / (0.09 + 0.64 + 6.25 + 16))
    assert effective_sample_size(torch.zeros(3, 8)).tolist() == [8.0, 8.0, 8.0]
    assert effective_sample_size(torch.tensor([1000.0, 0, 0])).item() == pytest.approx(1.0)
    assert effective_sample_size(torch.full((4,), -math.inf)).item() == 0.0


def test_one_value_per_group_in_ascending_order_of_labels():
    log_ratio = torch.tensor([2.0, 3.0, 4.0, 1.0]).log()
    labels = torch.tensor([5, -1, 5, 8])
    assert group_mass(log_ratio, group_index=labels).tolist() == pytest.approx([3.0, 3.0, 1.0])
    assert effective_sample_size(log_ratio, group_index=labels).shape == (3,)


def test_gmc_by_hand():
    torch.testing.assert_close(gmc_weights(GMC_RATIOS.log()), GMC_RATIOS * 1.2 / 1.9)
    torch.testing.assert_close(gmc_weights(GMC_RATIOS.log(), 1.0), GMC_RATIOS)


def test_gmc_is_is_below_the_cap_and_scaled_snis_above():
    log_ratio = torch.randn(400, 8, generator=torch.Generator().manual_seed(0))
    above = (log_group_mass(log_ratio) > math.log(1.2)).unsqueeze(-1)
    assert above.any() and not above.all()
    expected = torch.where(above, 1.2 * self_normalized_weights(log_ratio), is_weights(log_ratio))
    torch.testing.assert_close(gmc_weights(log_ratio), expected, rtol=1e-6, atol=0)


def test_gmc_keeps_ratios_inside_a_group():
    weight = gmc_weights(GMC_RATIOS.log())
    torch.testing.assert_close(weight / weight[0], GMC_RATIOS / GMC_RATIOS[0])


def test_extreme_log_ratios():
    huge = torch.tensor([1000.0, 0.0, -5.0, 2.0])
    assert gmc_weights(huge).tolist() == pytest.approx([4.8, 0, 0, 0], rel=1e-6)
    assert self_normalized_weights(huge).tolist() == pytest.approx([4, 0, 0, 0], rel=1e-6)
    none = torch.full((3, 4), -math.inf)
    for rule in (gmc_weights, self_normalized_weights, water_filling_weights, mixture_weights, is_weights, tic_weights):
        assert torch.equal(rule(none), torch.zeros(3, 4))
    assert torch.isfinite(is_weights(huge)).all()
    assert group_mass(huge).item() == math.inf
    assert log_group_mass(huge).item() == pytest.approx(1000 - math.log(4))


def test_a_rollout_of_probability_zero_counts_with_weight_zero():
    log_ratio = torch.tensor([-math.inf, math.log(3.0)])
    assert group_mass(log_ratio).item() == pytest.approx(1.5)
    assert gmc_weights(log_ratio).tolist() == pytest.approx([0, 2.4])


def test_two_outcome_gradient_of_the_theory():
    """docs/theory.md section 6: p=.6, q=.3, eps=.2, baseline .5; expectation over Binomial groups, in double."""
    p, q, epsilon, baseline = 0.6, 0.3, 0.2, 0.5
    log_r = torch.tensor([math.log((1 - p) / (1 - q)), math.log(p / q)], dtype=torch.float64)
    signal = torch.tensor([(0 - baseline) * -p, (1 - baseline) * (1 - p)], dtype=torch.float64)  # A times score
    truth = p * (1 - p)

    def bias(rule, group):
        expectation = 0.0
        for k in range(group + 1):
            outcome = (torch.arange(group) < k).long()
            chance = math.comb(group, k) * q**k * (1 - q) ** (group - k)
            expectation += chance * float((rule(log_r[outcome]) * signal[outcome]).mean())
        return expectation - truth

    assert bias(lambda x: tic_weights(x, epsilon, variant="truncate"), 8) == pytest.approx(-0.048, abs=1e-12)
    assert bias(lambda x: tic_weights(x, epsilon, variant="mask"), 8) == pytest.approx(-0.12, abs=1e-12)
    assert abs(bias(lambda x: gmc_weights(x, epsilon), 8)) == pytest.approx(6.33e-3, rel=2e-3)
    assert abs(bias(lambda x: gmc_weights(x, epsilon), 64)) == pytest.approx(5.78e-5, rel=2e-3)
    assert bias(is_weights, 8) == pytest.approx(0.0, abs=1e-12)


def test_water_filling_by_hand():
    # the two largest are cut: 0.3 + 0.8 + 2 * level = 4.8
    weight = water_filling_weights(GMC_RATIOS.log())
    torch.testing.assert_close(weight, torch.tensor([0.3, 0.8, 1.85, 1.85]))
    assert water_filling_weights(torch.tensor([1000.0, 900, 0, 0])).tolist() == pytest.approx([1.4, 1.4, 1, 1])
    assert torch.equal(water_filling_weights(GMC_RATIOS.log(), 1.0), is_weights(GMC_RATIOS.log()))


def test_water_filling_has_the_least_second_moment_of_the_optimal_set():
    ratio = torch.tensor([0.3, 0.8, 2.5, 4.0, 6.0], dtype=torch.float64)
    filled, capped = water_filling_weights(ratio.log()), gmc_weights(ratio.log())
    assert filled.mean().item() == pytest.approx(1.2) and capped.mean().item() == pytest.approx(1.2)
    assert filled.square().mean() < capped.square().mean()
    generator = torch.Generator().manual_seed(0)
    compared = 0
    for _ in range(2000):  # random members of {0 <= w <= r, mean w = c}
        member = filled + 0.3 * torch.randn(5, generator=generator, dtype=torch.float64)
        member = member - (member.mean() - 1.2)
        if (member >= 0).all() and (member <= ratio).all():
            compared += 1
            assert member.square().mean() >= filled.square().mean() - 1e-12
    assert compared > 50


def test_mixture():
    ratio = GMC_RATIOS
    tempered = ratio / (0.2 * ratio + 0.8)
    expected = tempered * min(1.0, 1.2 / tempered.mean().item())
    torch.testing.assert_close(mixture_weights(ratio.log()), expected)
    torch.testing.assert_close(mixture_weights(ratio.log(), 0.0), gmc_weights(ratio.log()))
    bounded = mixture_weights(torch.tensor([1000.0] + [-1000.0] * 99), 0.2, 10.0)
    assert bounded[0].item() == pytest.approx(5.0)  # 1 / alpha: no rollout owns the group


# Errors


def test_unknown_names_and_options():
    with pytest.raises(ValueError, match=r"unknown estimator 'gcm'. Did you mean 'gmc'\? Known: uncorrected, is, snis"):
        make_estimator("gcm")
    with pytest.raises(TypeError, match="estimator 'gmc' has no option 'eps'; it accepts: epsilon"):
        make_estimator("gmc", eps=0.1)
    with pytest.raises(TypeError, match="it accepts: none"):
        make_estimator("is", epsilon=0.1)
    with pytest.raises(ValueError, match=r"Did you mean 'truncate'\?"):
        tic_weights(torch.zeros(3), variant="truncated")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        (name, {option: value})
        for name, defaults in DEFAULTS.items()
        for option in defaults
        for value in (-0.1, math.nan)
    ]
    + [("mixture", {"alpha": 1.0}), ("seq_mis", {"cap": 0}), ("token_tis", {"cap": 0.0})]
    + [("icepop", {"low": 2.0, "high": 1.0}), ("gmc", {"epsilon": math.inf})],
)
def test_options_out_of_range(name, options):
    with pytest.raises(ValueError, match=r"must be .* got"):
        make_estimator(name, **options)


@pytest.mark.parametrize("rule", [gmc_weights, tic_weights, water_filling_weights])
def test_functions_check_epsilon_too(rule):
    assert torch.isfinite(rule(torch.zeros(4), 0)).all()  # an int is a number
    for epsilon in (-1e-9, math.nan):
        with pytest.raises(ValueError, match="epsilon must be >= 0"):
            rule(torch.zeros(4), epsilon)
    with pytest.raises(TypeError):
        rule(torch.zeros(4), "0.2")


def test_wrong_shapes():
    current, behavior, mask, advantage = _step()
    gmc = make_estimator("gmc")
    with pytest.raises(ValueError, match=r"advantage_PG has shape \(5,\), expected \(5, 8\)"):
        gmc(current, behavior, mask, advantage[:, 0])
    with pytest.raises(ValueError, match="valid_PG has shape"):
        gmc(current, behavior, mask, advantage, torch.ones(8, dtype=torch.bool))
    with pytest.raises(ValueError, match="mask has shape"):
        gmc(current, behavior, mask[:, :, :3], advantage)
    with pytest.raises(ValueError, match="token dimension comes last"):
        gmc(current[0, 0], behavior[0, 0], mask[0, 0], advantage[0, 0])
    with pytest.raises(ValueError, match=r"group_index has shape \(3,\), expected \(4,\)"):
        gmc_weights(torch.zeros(4), group_index=torch.zeros(3, dtype=torch.long))
    with pytest.raises(ValueError, match="group_index goes with flat rollouts"):
        gmc_weights(torch.zeros(2, 4), group_index=torch.zeros(2, 4, dtype=torch.long))
    with pytest.raises(ValueError, match="log_ratio is a scalar"):
        gmc_weights(torch.tensor(0.0))
    with pytest.raises(TypeError):
        gmc_weights(torch.zeros(4), group_index=torch.zeros(4))
    with pytest.raises(TypeError):
        gmc_weights(torch.zeros(4, dtype=torch.long))
