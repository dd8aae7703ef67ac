"""Statistics over a few seeds: bootstrap intervals, paired differences, aggregates over settings, falls of a run.

Arrays in, numbers out; every random draw comes from the generator that is passed. The unit that is resampled is the
seed (a whole run), never an update or an evaluation: those of one run are not independent. Aggregates over settings
follow Agarwal et al. 2021 (arXiv 2108.13264): seeds are resampled within each setting ("stratified"), because the
settings are chosen and only the seeds are random.

A percentile bootstrap of few values is too narrow: with normal data its nominal 95 % covers about 90 % at 10 seeds and
84 % at 5. With fewer than `FEW` seeds there is no interval at all; show the seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

FEW = 5  # seeds below which individual values are shown instead of an interval
RESAMPLES = 10_000

Statistic = Callable[..., Any]  # called as statistic(values, axis=-1)


@dataclass(frozen=True)
class Interval:
    """An estimate with its bootstrap interval. `low` and `high` are NaN with fewer than `FEW` seeds.

    `n` counts seeds (of one setting; for aggregates the smallest number of seeds in a setting) and `samples` holds the
    values that went in when they belong to one setting, so that few of them can be shown.
    """

    estimate: float
    low: float
    high: float
    n: int
    level: float = 0.95
    samples: tuple[float, ...] = ()

    @property
    def few(self) -> bool:
        return self.n < FEW

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval lies on one side of 0; False when there is no interval."""
        return bool(self.low > 0 or self.high < 0)

    def __str__(self) -> str:
        """`0.970 [0.961, 0.978] (n = 10 seeds, 95 % interval)`, or the seeds themselves when they are few."""
        seeds = f"n = {self.n} seed{'s' * (self.n != 1)}"
        if not self.few:
            return f"{self.estimate:.3f} [{self.low:.3f}, {self.high:.3f}] ({seeds}, {self.level * 100:g} % interval)"
        shown = ": " + ", ".join(f"{value:.3f}" for value in self.samples) if self.samples else ", no interval"
        return f"{self.estimate:.3f} ({seeds}{shown})"


def interquartile_mean(values: Any, axis: int | None = None) -> Any:
    """Mean of the middle half: floor(n / 4) values are dropped at each end (fewer than 4: the plain mean)."""
    values = np.asarray(values, dtype=float)
    values = np.sort(values.ravel() if axis is None else np.moveaxis(values, axis, -1), axis=-1)
    n = values.shape[-1]
    cut = n // 4
    return values[..., cut : n - cut].mean(-1)


def bootstrap_interval(
    samples: Any,
    generator: np.random.Generator,
    *,
    statistic: Statistic = np.mean,
    level: float = 0.95,
    resamples: int = RESAMPLES,
) -> Interval:
    """Percentile bootstrap of `statistic` over the seeds of one setting: `samples` is 1-D, one value per seed.

    `statistic` takes an array and `axis`. Raises ValueError for no samples, another shape or values that are not
    finite (leave a missing run out and say so, do not pass NaN).
    """
    values = _seeds("samples", samples)
    estimate = float(statistic(values, axis=-1))
    if len(values) < FEW:
        return Interval(estimate, np.nan, np.nan, len(values), level, tuple(values.tolist()))
    resampled = statistic(_resample(values, generator, resamples), axis=-1)
    low, high = _percentiles(resampled, level)
    return Interval(estimate, low, high, len(values), level, tuple(values.tolist()))


def paired_difference(
    samples: Any,
    reference: Any,
    generator: np.random.Generator,
    *,
    level: float = 0.95,
    resamples: int = RESAMPLES,
) -> Interval:
    """Mean of `samples - reference`, both in the order of the same seeds, bootstrapped over these pairs.

    A seed fixes the prompts that both methods meet, so what it adds to both cancels; the unpaired interval would carry
    it twice. Positive: `samples` are higher. Raises ValueError if the lengths differ.
    """
    first, second = _seeds("samples", samples), _seeds("reference", reference)
    if len(first) != len(second):
        raise ValueError(
            f"paired_difference got {len(first)} samples and {len(second)} reference values; it needs one pair per "
            "common seed, in the same order"
        )
    return bootstrap_interval(first - second, generator, level=level, resamples=resamples)


def stratified_interval(
    strata: Sequence[Any],
    generator: np.random.Generator,
    *,
    statistic: Statistic = interquartile_mean,
    level: float = 0.95,
    resamples: int = RESAMPLES,
) -> Interval:
    """`statistic` of all runs of all settings together (default: interquartile mean), seeds resampled per setting.

    `strata` holds one 1-D array per setting (a delay, a task, ...), which may differ in length. Scores must share a
    scale, as accuracies do. Raises ValueError as `bootstrap_interval` does.
    """
    values = _strata(strata)
    together = float(statistic(np.concatenate(values), axis=-1))
    fewest = min(map(len, values))
    if fewest < FEW:
        return Interval(together, np.nan, np.nan, fewest, level)
    resampled = np.concatenate([_resample(setting, generator, resamples) for setting in values], axis=-1)
    low, high = _percentiles(statistic(resampled, axis=-1), level)
    return Interval(together, low, high, fewest, level)


def performance_profile(
    strata: Sequence[Any],
    thresholds: Any,
    generator: np.random.Generator,
    *,
    level: float = 0.95,
    resamples: int = 2000,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Share of runs with a score above each threshold, mean over settings: `(profile, low, high)`, pointwise.

    A method whose profile lies above another's everywhere is better at every level, whatever the average says. `low`
    and `high` are NaN when a setting has fewer than `FEW` seeds.
    """
    values, levels = _strata(strata), np.asarray(thresholds, dtype=float)
    if levels.ndim != 1:
        raise ValueError(f"performance_profile needs a 1-D array of thresholds; got shape {levels.shape}")

    def above(runs: np.ndarray) -> np.ndarray:  # (..., seeds) -> (..., thresholds); sorted, so no large comparison
        ordered = np.sort(runs.reshape(-1, runs.shape[-1]), axis=-1)
        reached = np.stack([np.searchsorted(row, levels, side="right") for row in ordered])
        return (1 - reached / runs.shape[-1]).reshape(*runs.shape[:-1], len(levels))

    profile = np.mean([above(setting) for setting in values], axis=0)
    if min(map(len, values)) < FEW:
        return profile, np.full_like(profile, np.nan), np.full_like(profile, np.nan)
    resampled = np.mean([above(_resample(setting, generator, resamples)) for setting in values], axis=0)
    tail = (1 - level) / 2
    low, high = np.quantile(resampled, [tail, 1 - tail], axis=0)
    return profile, low, high


def probability_of_improvement(
    strata: Sequence[Any],
    reference: Sequence[Any],
    generator: np.random.Generator,
    *,
    level: float = 0.95,
    resamples: int = 2000,
) -> Interval:
    """P(a run of this method beats a run of the reference), ties half, mean over settings; 0.5 means no difference.

    Both hold one 1-D array per setting, in the same order of settings; seeds need not be the same. It says how often,
    not by how much: read it beside `paired_difference`.
    """
    first, second = _strata(strata), _strata(reference)
    if len(first) != len(second):
        raise ValueError(
            f"probability_of_improvement got {len(first)} settings and {len(second)} reference settings; give the same "
            "settings in the same order"
        )

    def wins(x: np.ndarray, y: np.ndarray) -> Any:
        gap = x[..., :, None] - y[..., None, :]
        return ((gap > 0) + 0.5 * (gap == 0)).mean((-1, -2))

    estimate = float(np.mean([wins(x, y) for x, y in zip(first, second, strict=True)]))
    fewest = min(map(len, first + second))
    if fewest < FEW:
        return Interval(estimate, np.nan, np.nan, fewest, level)
    resampled = np.mean(
        [
            wins(_resample(x, generator, resamples), _resample(y, generator, resamples))
            for x, y in zip(first, second, strict=True)
        ],
        axis=0,
    )
    low, high = _percentiles(resampled, level)
    return Interval(estimate, low, high, fewest, level)


@dataclass(frozen=True)
class Falls:
    """How often one run fell: `dips` it came back from, and whether it `collapsed` (had fallen at its end)."""

    dips: int
    collapsed: bool


def falls(accuracy: Any, *, fraction: float = 0.5) -> Falls:
    """Falls of one run from all its evaluations in order, the one before training included.

    A run has fallen where its accuracy is below `fraction` of the best so far. A stretch of such evaluations that ends
    before the run does is a dip; one that lasts to the end is the collapse of the protocols (the final accuracy below
    half of the best). The accuracy before training counts as a best: a run that is at 0 ever after has collapsed.
    """
    values = _seeds("accuracy", accuracy)
    if not 0 < fraction < 1:
        raise ValueError(f"falls got fraction={fraction}; expected a number between 0 and 1")
    fallen = values < fraction * np.maximum.accumulate(values)
    ends = int(np.count_nonzero(fallen[:-1] & ~fallen[1:]))
    return Falls(dips=ends, collapsed=bool(fallen[-1]))


@dataclass(frozen=True)
class UsableRange:
    """Step sizes around the best one that are about as good. `edge`: the range touches an end of what was tried."""

    best: float
    low: float
    high: float
    edge: bool

    @property
    def factor(self) -> float:
        """high / low: how far one may be off."""
        return self.high / self.low


def usable_range(step_sizes: Any, scores: Any, *, share: float = 0.95) -> UsableRange:
    """The step sizes next to the best one, without a gap, whose score is at least `share` of the best score.

    `scores` holds the mean over seeds of each step size, of a measure that is positive and better when higher.
    """
    rates, values = np.asarray(step_sizes, dtype=float), _seeds("scores", scores)
    if rates.shape != values.shape or (rates <= 0).any() or len(np.unique(rates)) != len(rates):
        raise ValueError(
            f"usable_range needs one score for each of several different positive step sizes; got step sizes {rates} "
            f"and {len(values)} scores"
        )
    order = np.argsort(rates)
    rates, values = rates[order], values[order]
    top = int(values.argmax())
    good = values >= share * values[top]
    low = high = top
    while low > 0 and good[low - 1]:
        low -= 1
    while high < len(rates) - 1 and good[high + 1]:
        high += 1
    return UsableRange(float(rates[top]), float(rates[low]), float(rates[high]), low == 0 or high == len(rates) - 1)


def _seeds(name: str, samples: Any) -> np.ndarray:
    values = np.asarray(samples, dtype=float)
    if values.ndim != 1 or values.size == 0:
        raise ValueError(f"{name} has shape {values.shape}; expected a 1-D array with at least one value")
    if not np.isfinite(values).all():
        raise ValueError(f"{name} holds values that are not finite; leave missing runs out and say how many")
    return values


def _strata(strata: Sequence[Any]) -> list[np.ndarray]:
    values = [_seeds(f"setting {k}", setting) for k, setting in enumerate(strata)]
    if not values:
        raise ValueError("no setting given; expected one array of scores per setting")
    return values


def _resample(values: np.ndarray, generator: np.random.Generator, resamples: int) -> np.ndarray:
    """(resamples, n): n values drawn with replacement, as often as asked."""
    return values[generator.integers(0, len(values), (resamples, len(values)))]


def _percentiles(resampled: np.ndarray, level: float) -> tuple[float, float]:
    if not 0 < level < 1:
        raise ValueError(f"level is {level}; expected a number between 0 and 1, such as 0.95")
    low, high = np.quantile(resampled, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
