"""The runs of a study as arrays (method, setting, seed), with intervals over the seeds: what its figure plots.

A study varies one thing beside the method (a learner, a group size, a threshold, ...). Its figure names both in the
columns `method` and `setting` of the frame of runs; here they become arrays. A missing run is NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gmc_core.reporting.run_comparisons import falls_table, in_order
from gmc_core.reporting.run_records import Runs
from gmc_core.reporting.statistics import bootstrap_interval

if TYPE_CHECKING:
    import pandas as pd

MEASURES = {"final": "final_accuracy", "area": "area_under_curve"}
REFERENCE = "gmc"


def by_cell(runs: pd.DataFrame, column: str, methods: Sequence, settings: Sequence) -> np.ndarray:
    """`column` of every run as an array (method, setting, seed), seeds in increasing order, NaN for a missing run.

    Raises ValueError if two runs share method, setting and seed: the labels then do not tell them apart.
    """
    keys = ["method", "setting", "seed"]
    twice = runs[runs.duplicated(keys, keep=False)]
    if len(twice):
        first = twice.iloc[0]
        raise ValueError(
            f"{len(twice)} runs share method, setting and seed with another (for example {first['run_id']}: "
            f"{first['method']}, {first['setting']}, seed {first['seed']}); label them apart"
        )
    seeds = sorted(set(runs["seed"]))
    index = [(method, setting, seed) for method in methods for setting in settings for seed in seeds]
    values = runs.set_index(keys)[column].reindex(index).to_numpy(dtype=float)
    return values.reshape(len(methods), len(settings), len(seeds))


def interval_rows(values: np.ndarray, generator: np.random.Generator, level: float = 0.95) -> np.ndarray:
    """(..., 3): mean, low and high over the seeds (last axis), those that are there; NaN for none.

    Low and high are NaN for fewer than five seeds.
    """
    flat = values.reshape(-1, values.shape[-1])
    rows = np.full((len(flat), 3), np.nan)
    for k, seeds in enumerate(flat):
        present = seeds[np.isfinite(seeds)]
        if len(present):
            found = bootstrap_interval(present, generator, level=level)
            rows[k] = found.estimate, found.low, found.high
    return rows.reshape(*values.shape[:-1], 3)


def study_arrays(tables: Runs, runs: pd.DataFrame, generator: np.random.Generator) -> dict[str, Any]:
    """What most studies plot, from runs labelled with `method` and `setting` (in the order of their appearance).

    names, settings (text), seed, updates; final, area, collapsed, dips as (method, setting, seed); learning_rate as
    (method, setting). With gmc among the methods also final_difference and area_difference to it in the same seed.
    `<measure>_mean` holds mean, low, high over the seeds.
    """
    runs = runs.drop(columns="collapsed").merge(falls_table(tables), on="run_id", how="left", validate="one_to_one")
    names, settings = in_order(runs["method"]), in_order(runs["setting"])
    data: dict[str, Any] = {
        "experiment": tables.name,
        "names": names,
        "settings": [str(setting) for setting in settings],
        "seed": np.array(sorted(set(runs["seed"]))),
        "updates": int(runs["updates"].max()),
        "learning_rate": shared_by_seeds(by_cell(runs, "learning_rate", names, settings)),
    }
    for key in ("collapsed", "dips"):
        data[key] = by_cell(runs, key, names, settings)
    for key, column in MEASURES.items():
        data[key] = by_cell(runs, column, names, settings)
        data[f"{key}_mean"] = interval_rows(data[key], generator)
        if REFERENCE in names:
            data[f"{key}_difference"] = difference_to(data[key], names)
            data[f"{key}_difference_mean"] = interval_rows(data[f"{key}_difference"], generator)
    return data


def shared_by_seeds(values: np.ndarray) -> np.ndarray:
    """The value that all seeds of a cell share, NaN for an empty cell. ValueError if they differ."""
    least, most = (np.where(np.isnan(values), fill, values) for fill in (np.inf, -np.inf))
    least, most = least.min(-1), most.max(-1)
    if (least < most).any():
        raise ValueError("runs of one method and setting have several step sizes; label them apart")
    return np.where(np.isfinite(least), least, np.nan)


def keep_better(runs: pd.DataFrame) -> pd.DataFrame:
    """Of several step sizes of one method and setting, the runs at that of highest mean area (of equal ones: smaller).

    The choice is made on the runs that are shown, so it flatters them a little; a figure says so.
    """
    keys = ["method", "setting"]
    area = runs.groupby([*keys, "learning_rate"])["area_under_curve"].mean().sort_index()
    best = {key[:2]: key[2] for key in area.groupby(level=keys).idxmax()}
    kept = [
        best[method, setting] == rate
        for method, setting, rate in runs[[*keys, "learning_rate"]].itertuples(index=False)
    ]
    return runs[kept]


def over_updates(tables: Runs, metric: str, how: str = "mean") -> pd.Series:
    """`metric` of every run, summarised over its updates ("mean" or "median"; entries that are not finite left out)."""
    values = tables.metrics[metric].astype(float)
    kept = values.where(np.isfinite(values))
    return kept.groupby(tables.metrics["run_id"].astype(str)).agg(how)


def difference_to(values: np.ndarray, names: Sequence[str], reference: str = REFERENCE) -> np.ndarray:
    """(method, setting, seed) minus the reference in the same setting and seed."""
    return values - values[list(names).index(reference)]
