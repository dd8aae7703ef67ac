import math

import pytest
import torch

from gmc_core import METRICS, gmc_weights, group_diagnostics, make_estimator

RATIOS = torch.tensor([[0.3, 0.8, 2.5, 4.0], [1.0, 1.0, 1.0, 1.0]])
FIXED_NAMES = [
    "log_mass_mean",
    "log_mass_max",
    "capped_fraction",
    "weight_mean",
    "weight_max",
    "weight_zero_fraction",
    "ess_fraction",
    "log_ratio_mean",
    "log_ratio_std",
    "log_ratio_min",
    "log_ratio_max",
    "excess_group",
    "excess_truncate",
    "excess_mask",
    "excluded_rollouts",
    "zero_advantage_groups",
    "loss",
    "grad_norm",
    "grad_norm_clipped",
    "update_length",
    "learning_rate",
    "update",
    "policy_version",
    "behavior_version",
    "staleness",
    "reward_mean",
    "response_length",
    "truncated_fraction",
    "tokens",
    "accuracy",
    "final_accuracy",
    "area_under_curve",
    "best_accuracy",
    "collapsed",
]


def _plain(metrics):
    assert all(value.dim() == 0 for value in metrics.values())
    return {name: value.item() for name, value in metrics.items()}


def test_metrics_are_complete_and_explained():
    assert set(FIXED_NAMES) <= set(METRICS)
    advantage = torch.zeros(2, 4)
    assert set(group_diagnostics(RATIOS.log(), gmc_weights(RATIOS.log()), advantage=advantage)) <= set(METRICS)
    for metric in METRICS.values():
        assert metric.unit and metric.meaning and metric.bad


def test_by_hand():
    log_ratio = RATIOS.log()
    advantage = torch.tensor([[1.0, -1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    metrics = _plain(group_diagnostics(log_ratio, gmc_weights(log_ratio), advantage=advantage))
    expected = {
        "log_mass_mean": math.log(1.9) / 2,
        "log_mass_max": math.log(1.9),
        "capped_fraction": 0.5,
        "weight_mean": 1.1,
        "weight_max": 4 * 1.2 / 1.9,
        "weight_zero_fraction": 0.0,
        "ess_fraction": (7.6**2 / 22.98 / 4 + 1) / 2,
        "log_ratio_mean": log_ratio.mean().item(),
        "log_ratio_std": log_ratio.std(correction=0).item(),
        "log_ratio_min": math.log(0.3),
        "log_ratio_max": math.log(4.0),
        "excess_group": 0.35,
        "excess_truncate": (1.3 + 2.8) / 8,
        "excess_mask": 6.5 / 8,
        "excluded_rollouts": 0.0,
        "zero_advantage_groups": 1.0,
    }
    assert metrics == pytest.approx(expected, abs=1e-6)


def test_ratios_are_raw_whatever_the_estimator():
    log_ratio = torch.randn(20, 8, generator=torch.Generator().manual_seed(0)) * 3
    raw = ("log_ratio_max", "log_mass_max", "excess_group", "excess_mask", "ess_fraction")
    one, other = (_plain(group_diagnostics(log_ratio, w)) for w in (gmc_weights(log_ratio), torch.ones(20, 8)))
    assert {name: one[name] for name in raw} == {name: other[name] for name in raw}
    assert one["log_ratio_max"] == log_ratio.max().item() and one["log_mass_max"] > 1


def test_flat_equals_grouped():
    log_ratio = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
    order = torch.randperm(24, generator=torch.Generator().manual_seed(2))
    weight, label = gmc_weights(log_ratio), torch.arange(6).repeat_interleave(4)[order]
    valid = torch.ones(6, 4, dtype=torch.bool)
    valid[2], valid[3, 1] = False, False
    grouped = group_diagnostics(log_ratio, weight, valid=valid, advantage=log_ratio)
    flat = group_diagnostics(
        log_ratio.flatten()[order],
        weight.flatten()[order],
        valid=valid.flatten()[order],
        group_index=label,
        advantage=log_ratio.flatten()[order],
    )
    assert _plain(flat) == pytest.approx(_plain(grouped), rel=1e-5)


def test_excluded_rollouts_are_counted_and_leave_every_other_metric_alone():
    log_ratio = torch.randn(3, 4, generator=torch.Generator().manual_seed(3))
    dirty = torch.cat([log_ratio, torch.tensor([[math.nan, 5.0], [math.inf, math.nan], [1.0, 2.0]])], -1)
    valid = torch.ones(3, 6, dtype=torch.bool)
    valid[0, 5] = valid[2, 4] = valid[2, 5] = False  # invalid rollouts were not meant to take part: not counted
    clean = _plain(group_diagnostics(log_ratio, gmc_weights(log_ratio)))
    metrics = _plain(group_diagnostics(dirty, gmc_weights(dirty, valid=valid), valid=valid))
    assert clean.pop("excluded_rollouts") == 0.0 and metrics.pop("excluded_rollouts") == 3.0
    assert metrics == pytest.approx(clean, rel=1e-5)


def test_groups_of_mass_zero_and_weights_all_zero():
    log_ratio = torch.tensor([[-math.inf] * 3, [0.0, 0.0, 0.0]])
    metrics = _plain(group_diagnostics(log_ratio, torch.zeros(2, 3)))
    assert metrics["ess_fraction"] == 0.5 and metrics["weight_zero_fraction"] == 1.0
    assert metrics["log_mass_mean"] == 0.0 and metrics["log_ratio_mean"] == 0.0
    assert metrics["log_ratio_min"] == -math.inf
    assert all(math.isfinite(value) for name, value in metrics.items() if name != "log_ratio_min")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("log_ratio", [[[0.5]], [[1000.0, 0.0], [-1000.0, 999.0]], [[0.1, math.nan]]])
def test_finite_for_groups_of_one_and_for_extreme_ratios(log_ratio, dtype):
    log_ratio = torch.tensor(log_ratio, dtype=dtype)
    metrics = _plain(group_diagnostics(log_ratio, gmc_weights(log_ratio), advantage=torch.zeros_like(log_ratio)))
    assert all(math.isfinite(value) for value in metrics.values())
    assert metrics["excess_group"] <= metrics["excess_truncate"] * (1 + 1e-6) + 1e-6
    assert metrics["excess_truncate"] <= metrics["excess_mask"]


def test_order_of_the_excesses():
    log_ratio = torch.randn(50, 8, generator=torch.Generator().manual_seed(4)) * 2
    metrics = _plain(group_diagnostics(log_ratio, gmc_weights(log_ratio), epsilon=0.05))
    assert 0 < metrics["excess_group"] < metrics["excess_truncate"] < metrics["excess_mask"]


def test_token_weights_need_their_mask():
    log_ratio = torch.zeros(2, 3)
    mask = torch.tensor([1, 1, 0, 0], dtype=torch.bool).expand(2, 3, 4)
    logp = torch.full((2, 3, 4), -1.0)
    weight = make_estimator("ppo_clip")(logp, logp, mask, torch.ones(2, 3))
    metrics = _plain(group_diagnostics(log_ratio, weight, mask=mask))
    assert metrics["weight_mean"] == 1.0 and metrics["weight_zero_fraction"] == 0.0
    with pytest.raises(ValueError, match="pass mask too"):
        group_diagnostics(log_ratio, weight)
    with pytest.raises(ValueError, match="one weight per token"):
        group_diagnostics(log_ratio, weight[..., :2], mask=mask)


def test_nothing_counted_is_nan_not_zero():
    log_ratio = torch.full((2, 3), math.nan)
    metrics = _plain(group_diagnostics(log_ratio, torch.zeros(2, 3)))
    assert metrics["excluded_rollouts"] == 6.0
    assert all(math.isnan(value) for name, value in metrics.items() if name != "excluded_rollouts")


def test_metrics_carry_no_gradient():
    log_ratio = RATIOS.log().requires_grad_()
    assert not any(value.requires_grad for value in group_diagnostics(log_ratio, torch.ones(2, 4)).values())
