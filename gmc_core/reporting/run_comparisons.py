"""Comparisons of methods from the tables of an experiment: what `statistics` needs, gathered by method, delay and seed.

Every function takes the frame `runs` of `run_records.Runs` (one row per run) or the `Runs` themselves. A missing run
stays visible: it is NaN in an array and lowers n in a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gmc_core.reporting.run_records import Runs
from gmc_core.reporting.statistics import RESAMPLES, bootstrap_interval, falls, paired_difference

if TYPE_CHECKING:
    import pandas as pd


KEYS = ("estimator", "delay", "seed")


def in_order(values: Any) -> list:
    """Distinct values in the order of their first appearance: the order of the experiment's grid."""
    return list(dict.fromkeys(values))


def check_one_setting(runs: pd.DataFrame) -> None:
    """Raise ValueError if two runs share estimator, delay and seed: the frame then mixes settings (step sizes, say)."""
    twice = runs[runs.duplicated(list(KEYS), keep=False)]
    if len(twice):
        raise ValueError(
            f"{len(twice)} runs share estimator, delay and seed with another (for example {twice['run_id'].iloc[0]}); "
            "select one setting before comparing methods"
        )


def by_seed(runs: pd.DataFrame, metric: str, estimators: Sequence[str], delays: Sequence[int]) -> np.ndarray:
    """`metric` of every run as an array (estimator, delay, seed), seeds in increasing order, NaN for a missing run.

    Raises ValueError if the runs are not of one setting (see `check_one_setting`).
    """
    check_one_setting(runs)
    seeds = sorted(set(runs["seed"]))
    table = runs.set_index(list(KEYS))[metric]
    index = [(estimator, delay, seed) for estimator in estimators for delay in delays for seed in seeds]
    return table.reindex(index).to_numpy(dtype=float).reshape(len(estimators), len(delays), len(seeds))


def paired_table(
    runs: pd.DataFrame,
    metric: str,
    generator: np.random.Generator,
    *,
    reference: str = "gmc",
    resamples: int = RESAMPLES,
) -> pd.DataFrame:
    """Difference of every other estimator to `reference` at each delay, paired over their common seeds.

    Columns: estimator, delay, n, difference, low, high, and `seeds`, the single differences. Pairs without a common
    seed are left out. Raises ValueError if `reference` has no run.
    """
    import pandas as pd

    if reference not in set(runs["estimator"]):
        raise ValueError(f"no run of the reference {reference!r}; estimators: {', '.join(in_order(runs['estimator']))}")
    names, delays = in_order(runs["estimator"]), in_order(runs["delay"])
    values = by_seed(runs, metric, names, delays)
    base = values[names.index(reference)]
    rows = []
    for name, own in zip(names, values, strict=True):
        for delay, mine, theirs in zip(delays, own, base, strict=True):
            common = np.isfinite(mine) & np.isfinite(theirs)
            if name == reference or not common.any():
                continue
            found = paired_difference(mine[common], theirs[common], generator, resamples=resamples)
            rows.append((name, delay, found.n, found.estimate, found.low, found.high, found.samples))
    return pd.DataFrame(rows, columns=["estimator", "delay", "n", "difference", "low", "high", "seeds"])


def summary_table(
    tables: Runs,
    generator: np.random.Generator,
    *,
    metrics: Sequence[str] = ("final_accuracy", "area_under_curve"),
    resamples: int = RESAMPLES,
) -> pd.DataFrame:
    """One row per estimator and delay: n, the mean of each metric as an `Interval`, collapsed runs and dips.

    A text for display is `str(interval)`; with fewer than five seeds it lists them.
    """
    import pandas as pd

    fallen = falls_table(tables)
    rows = []
    for (estimator, delay), group in tables.runs.groupby(["estimator", "delay"], sort=False):
        counts = fallen[fallen["run_id"].isin(group["run_id"])]
        row = {"estimator": estimator, "delay": delay, "n": len(group)}
        row |= {metric: bootstrap_interval(group[metric], generator, resamples=resamples) for metric in metrics}
        rows.append(row | {"collapsed": int(counts["collapsed"].sum()), "dips": int(counts["dips"].sum())})
    return pd.DataFrame(rows)


def falls_table(tables: Runs) -> pd.DataFrame:
    """Dips and collapse of every run (see `statistics.falls`), from all its evaluations."""
    import pandas as pd

    evaluations = tables.evaluations.sort_values("update", kind="stable")
    rows = []
    for run_id, group in evaluations.groupby("run_id", sort=False, observed=True):
        found = falls(group["accuracy"])
        rows.append((run_id, found.dips, found.collapsed))
    return pd.DataFrame(rows, columns=["run_id", "dips", "collapsed"])


def curves(table: pd.DataFrame, metric: str, runs: pd.DataFrame, estimators: Sequence[str], delay: int) -> np.ndarray:
    """`metric` along the runs of one delay: an array (estimator, seed, row), rows in the order of updates.

    `table` is the frame of metrics or evaluations. Raises ValueError if runs differ in length.
    """
    chosen = runs[(runs["delay"] == delay) & runs["estimator"].isin(estimators)]
    check_one_setting(chosen)
    rows = table.sort_values("update", kind="stable").groupby("run_id", observed=True)[metric].apply(np.asarray)
    lengths = {len(rows[run_id]) for run_id in chosen["run_id"]}
    if len(lengths) != 1:
        raise ValueError(f"runs at delay {delay} have {sorted(lengths)} rows of {metric}; curves need one length")
    seeds = sorted(set(chosen["seed"]))
    found = np.full((len(estimators), len(seeds), lengths.pop()), np.nan)
    for run in chosen.itertuples():
        found[list(estimators).index(run.estimator), seeds.index(run.seed)] = rows[run.run_id]
    return found
