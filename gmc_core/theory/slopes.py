"""Exponents of power laws: slopes in log-log coordinates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

__all__ = ["local_log_slopes", "log_slope"]

Values = Sequence[float] | Sequence[int] | np.ndarray | torch.Tensor


def _logs(x: Values, y: Values) -> tuple[np.ndarray, np.ndarray]:
    x, y = (np.asarray(z.detach() if isinstance(z, torch.Tensor) else z, dtype=float) for z in (x, y))
    if x.ndim != 1 or x.shape != y.shape or x.size < 2:
        raise ValueError(f"a slope needs two or more points, x and y of equal length; got {x.shape} and {y.shape}.")
    if not ((x > 0).all() and (y > 0).all()):
        raise ValueError("a log-log slope needs x and y > 0; leave out the points that are 0.")
    return np.log(x), np.log(y)


def log_slope(x: Values, y: Values) -> float:
    """Least-squares slope of log y against log x: p for y = a x^p."""
    log_x, log_y = _logs(x, y)
    return float(np.polyfit(log_x, log_y, 1)[0])


def local_log_slopes(x: Values, y: Values) -> np.ndarray:
    """Slope between each point and the next: constant for a power law, shape (len(x) - 1,)."""
    log_x, log_y = _logs(x, y)
    return np.diff(log_y) / np.diff(log_x)
