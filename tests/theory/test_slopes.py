"""Log-log slopes: exact for a power law, local ones not constant for anything else."""

import numpy as np
import pytest
import torch

from gmc_core.theory.slopes import local_log_slopes, log_slope


def test_power_law():
    x = [1, 2, 4, 8]
    y = 3 * np.array(x) ** -0.4
    assert log_slope(x, y) == pytest.approx(-0.4, rel=1e-12)
    assert local_log_slopes(x, torch.tensor(y)) == pytest.approx([-0.4] * 3, rel=1e-12)


def test_exponential_decay_has_no_constant_slope():
    x = np.array([1.0, 2.0, 4.0])
    assert local_log_slopes(x, np.exp(-x)) == pytest.approx([-1 / np.log(2), -2 / np.log(2)])


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [([1.0], [1.0], "two or more"), ([1.0, 2.0], [1.0], "equal length"), ([0.0, 1.0], [1.0, 1.0], "> 0")],
)
def test_bad_input_is_refused(x, y, message):
    with pytest.raises(ValueError, match=message):
        log_slope(x, y)
