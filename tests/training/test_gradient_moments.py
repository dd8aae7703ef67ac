"""The noise-corrected moments: exact for known vectors, right on average for noisy ones."""

import math

import pytest
import torch

from gmc_core.training.gradient_moments import gradient_moments


def test_without_noise_every_moment_is_plain_geometry():
    mean, fresh = torch.tensor([3.0, 0.0, 4.0]), torch.tensor([0.0, 0.0, 2.0])
    found = gradient_moments(mean.expand(3, 2, 3), fresh.expand(3, 4, 3))
    expected = {
        "bias_squared": 13.0, "norm_squared": 25.0, "fresh_norm_squared": 4.0, "signal": 2.0, "cosine": 0.8,
        "variance": 0.0, "mean_squared_error": 13.0, "update_cosine": 0.8,
    }  # fmt: skip
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, abs=1e-12), name
        assert found[f"{name}_error"] == pytest.approx(0.0, abs=1e-9), name
    assert len(found) == 2 * len(expected)


def test_the_noise_of_both_sides_is_subtracted():
    """Noise far above the signal: plug-in squares would be off by its whole variance."""
    generator = torch.Generator().manual_seed(0)
    S, K, J, D, repeats = 3, 2, 3, 5, 1500
    mean_S, fresh_S = torch.randn(S, 1, D, generator=generator), torch.randn(S, 1, D, generator=generator)
    totals: dict[str, float] = {}
    for _ in range(repeats):
        stale = mean_S + 2.0 * torch.randn(S, K, D, generator=generator)
        fresh = fresh_S + 1.5 * torch.randn(S, J, D, generator=generator)
        for name, value in gradient_moments(stale, fresh).items():
            totals[name] = totals.get(name, 0.0) + value / repeats
    mean, fresh = mean_S.mean(0), fresh_S.mean(0)
    variance = 4.0 * D
    gap = (mean_S - fresh_S).square().sum(-1).mean().item()
    assert totals["bias_squared"] == pytest.approx((mean - fresh).square().sum().item(), abs=0.2)
    assert totals["norm_squared"] == pytest.approx(mean.square().sum().item(), abs=0.2)
    assert totals["fresh_norm_squared"] == pytest.approx(fresh.square().sum().item(), abs=0.2)
    assert totals["variance"] == pytest.approx(variance, rel=0.03)
    assert totals["mean_squared_error"] == pytest.approx(variance + gap, rel=0.03)


def test_standard_errors_cover_the_scatter():
    """Over repetitions with new prompts too, which is what the sets stand for."""
    generator = torch.Generator().manual_seed(1)
    S, D = 12, 4
    values, errors = [], []
    for _ in range(300):
        stale = 1.0 + torch.randn(S, 1, D, generator=generator) + torch.randn(S, 2, D, generator=generator)
        found = gradient_moments(stale, 1.0 + torch.zeros(S, 2, D))
        values.append(found["norm_squared"])
        errors.append(found["norm_squared_error"])
    scatter = torch.tensor(values).std().item()
    assert 0.8 < (sum(e * e for e in errors) / len(errors)) ** 0.5 / scatter < 1.4


def test_a_quotient_of_nothing_is_nan_not_a_number():
    found = gradient_moments(torch.zeros(2, 2, 3), torch.zeros(2, 2, 3))
    assert math.isnan(found["cosine"]) and math.isnan(found["signal"]) and math.isnan(found["update_cosine"])
    assert found["bias_squared"] == 0.0


@pytest.mark.parametrize(
    ("stale", "fresh", "message"),
    [
        ((1, 2, 3), (1, 2, 3), "at least two sets"),
        ((2, 1, 3), (2, 2, 3), "stale_SKD has shape"),
        ((2, 2, 3), (2, 1, 3), "fresh_SJD has shape"),
        ((2, 2, 3), (3, 2, 3), "must agree"),
    ],
)
def test_what_cannot_be_measured_is_refused(stale, fresh, message):
    with pytest.raises(ValueError, match=message):
        gradient_moments(torch.zeros(stale), torch.zeros(fresh))
