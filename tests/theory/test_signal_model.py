"""The signal model against golden numbers and against plain simulation of the Gaussian signal."""

import numpy as np
import pytest
import torch

from gmc_core.estimators import gmc_weights, self_normalized_weights, tic_weights, water_filling_weights
from gmc_core.estimators.exact_moments import mse_crossover
from gmc_core.theory.ratio_laws import LognormalRatio
from gmc_core.theory.signal_model import signal_moments

RULES = {
    "is": torch.exp,
    "gmc": gmc_weights,
    "snis": self_normalized_weights,
    "tic_truncate": lambda x: tic_weights(x, variant="truncate"),
    "tic_mask": lambda x: tic_weights(x, variant="mask"),
    "water_filling": water_filling_weights,
}


def moments(name, log_variance, **options):
    options = {"samples": 20_000, "generator": np.random.default_rng(5), **options}
    return signal_moments(LognormalRatio(log_variance), RULES[name], 8, **options)


@pytest.mark.parametrize(
    ("name", "second"),
    [("gmc", 0.2655), ("snis", 0.3167), ("tic_truncate", 0.0579), ("tic_mask", 0.0216), ("water_filling", 0.2275)],
)
def test_second_moment_golden_numbers(name, second):
    """[7f] KL 1 nat, G = 8: GMC trades a larger second moment than truncation's for its smaller bias."""
    found = moments(name, 2.0, signal=0.0).second_moment
    assert found.value == pytest.approx(second, rel=0.01, abs=3 * found.standard_error)


@pytest.mark.parametrize(("log_variance", "crossover"), [(0.25, 12.1), (1.0, 6.2), (2.0, 5.0)])
def test_prompts_needed_before_gmc_beats_truncation(log_variance, crossover):
    """[7g]"""
    gmc, truncate = moments("gmc", log_variance), moments("tic_truncate", log_variance)
    bias, variance = zip(*((m.squared_bias, m.variance) for m in (gmc, truncate)), strict=True)
    assert mse_crossover(bias, variance) == pytest.approx(crossover, rel=0.05)


def test_self_normalised_weights_have_no_bias_here():
    found = moments("snis", 2.0)
    assert found.mean.value == pytest.approx(0.5, abs=1e-6)
    assert found.squared_bias < 1e-9


def test_integrating_the_gaussian_equals_drawing_it():
    law, rng = LognormalRatio(1.0), np.random.default_rng(7)
    weight = gmc_weights(torch.from_numpy(np.log(law.sample((200_000, 8), rng)))).numpy()
    g = (weight * (0.5 + rng.standard_normal(weight.shape))).mean(1)
    found = moments("gmc", 1.0)
    assert found.mean.value == pytest.approx(g.mean(), abs=0.005)
    assert found.variance == pytest.approx(g.var(), rel=0.03)
    assert found.mse(4) == pytest.approx(found.squared_bias + found.variance / 4)


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="samples >= 2"):
        moments("gmc", 1.0, samples=1)
    with pytest.raises(ValueError, match="keep the shape"):
        signal_moments(
            LognormalRatio(1.0), lambda x: x.mean(-1), 8, samples=10, generator=np.random.default_rng(0)
        )
