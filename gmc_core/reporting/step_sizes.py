"""Which step size a method gets: chosen from tuning runs, by one rule for all.

Tuning runs hold every method at each of its step sizes, on tuning seeds. The score of a step size is the mean over
those seeds of the area under the learning curve. With one or two seeds a single score is noisy, so scores are smoothed
with weights 1-2-1 over the neighbouring step sizes and, at positive delays, over the neighbouring tuned delays: what a
method does next to a step size is evidence about it, and a step size at the edge of a cliff is no good choice. The
highest smoothed score wins, of equal ones the smaller step size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

SCORE = "area_under_curve"


def choose_step_sizes(runs: pd.DataFrame, by: Sequence[str] = ("estimator",)) -> pd.DataFrame:
    """The chosen step size of every method at every delay of the tuning runs.

    Args:
        runs: the frame `runs` of tuning tables: estimator, delay, learning_rate, seed, area_under_curve. At one delay a
            method has the same seeds at every step size.
        by: the columns that say which method a run is of.
    Returns:
        one row per method and delay: the columns `by`, delay, step_size, score (mean over seeds), smoothed (what the
        rule compared), edge (the choice lies at an end of the grid), in the order of the runs.
    Raises: ValueError for step sizes of one method that were not run on the same seeds.
    """
    import pandas as pd

    rows = []
    for method, own in runs.groupby(list(by), sort=False):
        scores = own.pivot_table(index="delay", columns="learning_rate", values=SCORE, aggfunc="mean")
        counts = own.pivot_table(index="delay", columns="learning_rate", values="seed", aggfunc="nunique")
        if counts.isna().any(axis=None) or (counts.nunique(axis=1) > 1).any():
            raise ValueError(
                f"the tuning runs of {own.iloc[0][list(by)].to_list()} are no whole grid: every step size needs the "
                f"same seeds at a delay; found numbers of seeds per (delay, step size)\n{counts.to_string()}"
            )
        smooth = smoothed(scores)
        for delay in dict.fromkeys(own["delay"]):
            best = float(smooth.loc[delay].idxmax())  # the first, hence the smallest, of equal ones
            edge = best in (float(scores.columns.min()), float(scores.columns.max()))
            rows.append((*method, delay, best, scores.loc[delay, best], smooth.loc[delay, best], edge))
    return pd.DataFrame(rows, columns=[*by, "delay", "step_size", "score", "smoothed", "edge"])


def chosen_at_edge(
    tuning: pd.DataFrame, methods: Sequence, delays: Sequence[int], by: Sequence[str] = ("estimator",)
) -> np.ndarray:
    """(method, delay): whether the choice lies at an end of its grid, to be marked wherever it is used.

    A method is named by its value of `by`, or by a tuple for several columns. False where nothing was tuned.
    """
    table = choose_step_sizes(tuning, by=by)
    at_edge = {(*(getattr(row, name) for name in by), row.delay) for row in table[table["edge"]].itertuples()}
    keys = [method if isinstance(method, tuple) else (method,) for method in methods]
    return np.array([[(*key, delay) in at_edge for delay in delays] for key in keys])


def split_by_choice(
    fresh: pd.DataFrame, tuning: pd.DataFrame, by: Sequence[str] = ("estimator",), *, on_policy: str = "uncorrected"
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Fresh runs at the step size that the tuning runs choose, and those at any other (the next larger one).

    The verdict is read from the first; the two are never pooled. At delay 0 a method that was not tuned has the choice
    of the estimator `on_policy`, because rules whose weights are all 1 are one method there.
    Raises: ValueError naming a method that was not tuned, or a choice at which no fresh run was made.
    """
    table = choose_step_sizes(tuning, by=by)
    chosen = {(*(getattr(row, name) for name in by), row.delay): row.step_size for row in table.itertuples()}
    stand_in = next((rate for key, rate in chosen.items() if key[0] == on_policy and key[-1] == 0), None)
    at_choice = np.zeros(len(fresh), dtype=bool)
    for key, rows in fresh.reset_index(drop=True).groupby([*by, "delay"], sort=False):
        rate = chosen.get(key, stand_in if key[-1] == 0 else None)
        if rate is None:
            raise ValueError(f"{' '.join(map(str, key[:-1]))} at delay {key[-1]} was not tuned")
        hit = np.isclose(rows["learning_rate"], rate, rtol=1e-6)
        if not hit.any():
            raise ValueError(
                f"{' '.join(map(str, key[:-1]))} at delay {key[-1]} has no fresh run at the chosen step size {rate}: "
                "the fresh runs were made from other tuning tables; run them again"
            )
        at_choice[rows.index[hit]] = True
    return fresh[at_choice], fresh[~at_choice]


def smoothed(scores: pd.DataFrame) -> pd.DataFrame:
    """Scores (delay x step size) averaged with weights 1-2-1 over neighbours; delay 0 has no neighbours in delay."""
    result = _along(scores.sort_index(axis=0).sort_index(axis=1), axis=1)
    late = result.index > 0
    result.loc[late] = _along(result.loc[late], axis=0)
    return result


def common_step_size(runs: pd.DataFrame) -> float:
    """The one step size that is best for all at once: highest mean smoothed score over the methods and delays given."""
    total = None
    for _, own in runs.groupby("estimator", sort=False):
        scores = smoothed(own.pivot_table(index="delay", columns="learning_rate", values=SCORE, aggfunc="mean"))
        total = scores.mean() if total is None else total + scores.mean()
    if total is None or total.isna().any():
        raise ValueError("common_step_size needs tuning runs in which every method has the same step sizes")
    return float(total.idxmax())


def _along(scores: pd.DataFrame, *, axis: int) -> pd.DataFrame:
    values = np.moveaxis(scores.to_numpy(dtype=float), axis, 0)
    total, weight = 2.0 * values, np.full(values.shape, 2.0)
    total[1:] += values[:-1]
    weight[1:] += 1
    total[:-1] += values[1:]
    weight[:-1] += 1
    result = scores.copy()
    result.loc[:, :] = np.moveaxis(total / weight, 0, axis)
    return result
