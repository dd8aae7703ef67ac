"""avg@n and pass@k from the files of `gmc_core.rollouts.evaluation`, with intervals and paired tests.

The unit that is resampled is the problem: its n samples are not independent of each other, and a benchmark is a sample
of problems. Denominators are what was asked for: a response that never came is a failure, and is counted.

Two methods are compared on the same problems, pair by pair; what makes a problem hard cancels. With 30 problems (AIME)
an interval is about 25 points wide and a paired one is what can show a difference at all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gmc_core.reporting.statistics import FEW, RESAMPLES, Interval, bootstrap_interval, paired_difference
from gmc_core.rollouts.scoring import pass_at_k


@dataclass(frozen=True)
class BenchmarkResult:
    """A finished evaluation: P problems, `samples` asked for of each.

    `correct_P` right answers, `received_P` responses that came, `truncated_P` of them cut off by the length limit,
    `ids_P` what identifies a problem, `mean_length` tokens of a received response, `faults` verifications that failed.
    """

    settings: Mapping[str, Any]
    ids_P: tuple[str, ...]
    correct_P: np.ndarray
    received_P: np.ndarray
    truncated_P: np.ndarray
    mean_length: float
    faults: int

    @property
    def samples(self) -> int:
        return self.settings["samples"]

    @property
    def problems(self) -> int:
        return len(self.ids_P)

    @property
    def missing(self) -> int:
        """Responses that were asked for and never came. They are failures in every figure."""
        return self.problems * self.samples - int(self.received_P.sum())

    @property
    def truncated_fraction(self) -> float:
        return float(self.truncated_P.sum() / max(1, self.received_P.sum()))

    def scores(self, k: int | None = None) -> np.ndarray:
        """(P,) per problem: the share of right answers (avg@n), or with `k` the estimate of pass@k.

        ValueError for a k above the number of samples.
        """
        if k is None:
            return self.correct_P / self.samples
        return np.array([pass_at_k(int(correct), self.samples, k) for correct in self.correct_P])

    def interval(self, generator: np.random.Generator, k: int | None = None, *, level: float = 0.95) -> Interval:
        """avg@n (or pass@k) over all problems with its bootstrap interval over problems."""
        return bootstrap_interval(self.scores(k), generator, level=level)


def read_result(path: Path | str, *, interrupted: bool = False) -> BenchmarkResult:
    """The evaluation in `path`. ValueError for another file, or for one that lacks problems.

    `interrupted=True` reads that one too, and counts the problems it lacks as failures: a lower bound, not a result.
    """
    path = Path(path)
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]  # a half-written last line is left out
    try:
        first, *rows = [json.loads(line) for line in lines]
        settings = first["settings"]
        by_problem = {row["problem"]: row for row in rows}
        count = settings["problems"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no evaluation ({error!r})") from error
    absent = sorted(set(range(count)) - set(by_problem))
    if absent and not interrupted:
        raise ValueError(
            f"{path} holds {count - len(absent)} of {count} problems; run the evaluation again with the same settings "
            "and path, it goes on where it stopped"
        )
    nothing = {"id": "", "rewards": [], "finished": [], "lengths": [], "faults": 0}
    ordered = [by_problem.get(problem, nothing) for problem in range(count)]
    lengths = [length for row in ordered for length in row["lengths"]]
    return BenchmarkResult(
        settings=settings,
        ids_P=tuple(row["id"] for row in ordered),
        correct_P=np.array([sum(reward > 0 for reward in row["rewards"]) for row in ordered]),
        received_P=np.array([len(row["rewards"]) for row in ordered]),
        truncated_P=np.array([sum(not done for done in row["finished"]) for row in ordered]),
        mean_length=float(np.mean(lengths)) if lengths else 0.0,
        faults=sum(row["faults"] for row in ordered),
    )


@dataclass(frozen=True)
class Comparison:
    """`difference` of two methods on the same problems, `p_value` of the sign-flip test that they are equal."""

    difference: Interval
    p_value: float
    better: int
    worse: int


def compare(
    result: BenchmarkResult,
    reference: BenchmarkResult,
    generator: np.random.Generator,
    k: int | None = None,
    *,
    level: float = 0.95,
) -> Comparison:
    """`result` minus `reference`, problem by problem. ValueError unless both were made on the same problems.

    The test flips the signs of the differences: under the hypothesis that the methods are equal each problem could as
    well have come out the other way round. With one sample per problem it is the exact McNemar test.
    """
    if result.ids_P != reference.ids_P:
        common = len(set(result.ids_P) & set(reference.ids_P))
        raise ValueError(
            f"the two results are of different problems or in another order ({common} in common, of {result.problems} "
            f"and {reference.problems}); evaluate both with the same task, options and number of problems"
        )
    first, second = result.scores(k), reference.scores(k)
    gap = first - second
    return Comparison(
        difference=paired_difference(first, second, generator, level=level),
        p_value=sign_flip_p_value(gap, generator),
        better=int((gap > 0).sum()),
        worse=int((gap < 0).sum()),
    )


def sign_flip_p_value(differences: Any, generator: np.random.Generator, *, resamples: int = RESAMPLES) -> float:
    """Two-sided p-value of a mean difference of 0 over paired differences, which may be any numbers.

    Exact when `resamples` is enough to enumerate the signs of the differences that are not 0, else from that many
    random assignments, the observed one counted with them. 1.0 when every difference is 0.
    """
    from scipy.stats import permutation_test

    gaps = np.asarray(differences, dtype=float)
    if gaps.ndim != 1 or not np.isfinite(gaps).all():
        raise ValueError(f"sign_flip_p_value needs a 1-D array of finite differences; got shape {gaps.shape}")
    gaps = gaps[gaps != 0]
    if not len(gaps):
        return 1.0
    test = permutation_test(
        (gaps,), np.mean, permutation_type="samples", vectorized=True, n_resamples=resamples, rng=generator
    )
    return float(test.pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values for several comparisons with one reference, in the order given."""
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(np.argsort(p_values, kind="stable")):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted


def macro_average(
    results: Sequence[BenchmarkResult], generator: np.random.Generator, k: int | None = None, *, level: float = 0.95
) -> Interval:
    """Mean over benchmarks of their scores, each benchmark counting once; problems resampled within each."""
    scores = [result.scores(k) for result in results]
    estimate, fewest = float(np.mean([score.mean() for score in scores])), min(map(len, scores))
    if fewest < FEW:
        return Interval(estimate, np.nan, np.nan, fewest, level)
    means = [score[generator.integers(0, len(score), (RESAMPLES, len(score)))].mean(-1) for score in scores]
    low, high = np.quantile(np.mean(means, axis=0), [(1 - level) / 2, (1 + level) / 2])
    return Interval(estimate, float(low), float(high), fewest, level)
