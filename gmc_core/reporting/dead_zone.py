"""The dead zone of a run: the policy has left its stale rollouts, their ratios are near 0, nothing pulls it back.

The gradient of every rule that weighs by ratios shrinks with the group mass M. After a long update M can fall far below
1 in all groups at once; if the rollouts that arrive later come from policies just as far away, it stays there.

A run is *dead* at an update when the mean over groups of log M is at most `log_mass` (default log 0.1), or when every
group has mass 0. A *stretch* is at least `at_least` dead updates in a row, so that one bad batch does not count. M of
update u is measured before its step, so the first suspect for a stretch that starts at u is update u - 1.

A stretch that is left again is not always a recovery: once rollouts of the fallen policy itself arrive, their ratios
are near 1 whatever they are worth. Accuracy tells the two apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

LOG_MASS = math.log(0.1)
AT_LEAST = 3
BEFORE = 3  # updates before a stretch among which the longest is looked for


def dead_stretches(
    metrics: pd.DataFrame, *, log_mass: float = LOG_MASS, at_least: int = AT_LEAST, before: int = BEFORE
) -> pd.DataFrame:
    """Every dead stretch of every run.

    Args:
        metrics: the frame `metrics` of run tables: run_id, update (every one, from 1), log_mass_mean, update_length.
        before: how many updates before a stretch are searched for the longest.
    Returns:
        one row per stretch: run_id, start and stop (first and last dead update), updates (their number), escaped (its
        mass came back), last_length (length of update start - 1) and longest_length (of the last `before` updates);
        lengths are NaN for a stretch that starts at update 1.
    Raises: ValueError for a run whose updates are not 1, 2, 3, ...
    """
    import pandas as pd

    rows = []
    for run_id, dead, length in _runs(metrics, log_mass):
        for start, stop in _stretches(dead, at_least):
            earlier = length[max(0, start - before) : start]
            last, longest = (earlier[-1], earlier.max()) if len(earlier) else (math.nan, math.nan)
            rows.append((run_id, start + 1, stop, stop - start, stop < len(dead), last, longest))
    columns = ["run_id", "start", "stop", "updates", "escaped", "last_length", "longest_length"]
    return pd.DataFrame(rows, columns=columns)


def dead_after_length(
    metrics: pd.DataFrame,
    edges: Sequence[float],
    *,
    within: int = 1,
    log_mass: float = LOG_MASS,
    at_least: int = AT_LEAST,
) -> pd.DataFrame:
    """How often an update of a given length is followed by a dead stretch.

    Args:
        edges: ascending bounds of the bins of update_length; the last may be inf. An update belongs to the bin with
            low <= length < high; others are not counted.
        within: a stretch follows update u if it starts at one of u + 1 .. u + within.
    Returns:
        one row per bin: low, high, updates (taken while not in a stretch, and not among the last `within` of a run,
        whose sequel is unknown), followed, share (NaN for no updates).
    Raises: ValueError for edges that do not ascend, within < 1, or incomplete runs.
    """
    import pandas as pd

    bounds = np.asarray(edges, dtype=float)
    if bounds.ndim != 1 or len(bounds) < 2 or not (np.diff(bounds) > 0).all():
        raise ValueError(f"dead_after_length got edges={list(edges)}; expected at least two ascending bounds")
    if within < 1:
        raise ValueError(f"dead_after_length got within={within}; expected at least 1 update")
    updates, followed = np.zeros(len(bounds) - 1, dtype=int), np.zeros(len(bounds) - 1, dtype=int)
    for _, dead, length in _runs(metrics, log_mass):
        starts, inside = np.zeros(len(dead), dtype=bool), np.zeros(len(dead), dtype=bool)
        for start, stop in _stretches(dead, at_least):
            starts[start] = True
            inside[start:stop] = True
        for u in range(len(dead) - within):
            if inside[u] or not bounds[0] <= length[u] < bounds[-1]:
                continue
            place = int(np.searchsorted(bounds, length[u], side="right")) - 1
            updates[place] += 1
            followed[place] += bool(starts[u + 1 : u + 1 + within].any())
    share = np.where(updates > 0, followed / np.maximum(updates, 1), np.nan)
    return pd.DataFrame(
        {"low": bounds[:-1], "high": bounds[1:], "updates": updates, "followed": followed, "share": share}
    )


def before_first_stretch(
    metrics: pd.DataFrame,
    runs: pd.DataFrame,
    *,
    within: int = BEFORE,
    log_mass: float = LOG_MASS,
    at_least: int = AT_LEAST,
) -> pd.DataFrame:
    """Every update before the first dead stretch of its run, each once: what leads there, and what does not.

    A fallen run that stirs takes short updates and dies again, so only first stretches count. Runs that differ in their
    delay alone are one run as long as all rollouts come from the initial policy; an update that two runs of a method
    share, equal in every metric, is one row.

    Args:
        runs: the frame `runs` of the tables, for the estimator; runs that are not in it are left out.
    Returns:
        the columns of `metrics`, estimator, and followed: whether the stretch starts at one of the next `within`
        updates. The last `within` updates of a run without a stretch are left out: their sequel is unknown.
    Raises: ValueError for a run whose updates are not 1, 2, 3, ...
    """
    metrics = metrics.astype({"run_id": str})
    rows = metrics.merge(runs[["run_id", "estimator"]].astype({"run_id": str}), on="run_id", validate="many_to_one")
    first = dead_stretches(metrics, log_mass=log_mass, at_least=at_least).groupby("run_id")["start"].first()
    start = rows["run_id"].map(first)
    last = rows.groupby("run_id")["update"].transform("max")
    rows = rows.assign(followed=start - rows["update"] <= within)
    rows = rows[(rows["update"] < start) | (start.isna() & (rows["update"] <= last - within))]
    return rows.drop_duplicates([name for name in rows.columns if name not in ("run_id", "followed")])


def dead_summary(
    metrics: pd.DataFrame,
    runs: pd.DataFrame,
    by: Sequence[str] = ("estimator", "delay"),
    *,
    log_mass: float = LOG_MASS,
    at_least: int = AT_LEAST,
) -> pd.DataFrame:
    """Per setting: runs, how many `entered` the dead zone, how many `ended` in it, mean `share` of dead updates.

    `runs` is the frame `runs` of the tables; `by` are columns of it. Settings keep the order of the runs.
    """
    import pandas as pd

    stretches = dead_stretches(metrics, log_mass=log_mass, at_least=at_least)
    total = metrics.groupby("run_id", observed=True).size()
    dead = stretches.groupby("run_id")["updates"].sum().reindex(runs["run_id"]).fillna(0).to_numpy()
    table = pd.DataFrame(
        {
            **{name: runs[name].to_numpy() for name in by},
            "runs": 1,
            "entered": runs["run_id"].isin(stretches["run_id"]).to_numpy(),
            "ended": runs["run_id"].isin(stretches.loc[~stretches["escaped"].astype(bool), "run_id"]).to_numpy(),
            "share": dead / total.reindex(runs["run_id"]).to_numpy(),
        }
    )
    rules = {"runs": "sum", "entered": "sum", "ended": "sum", "share": "mean"}
    return table.groupby(list(by), sort=False).agg(rules).reset_index()


def _runs(metrics: pd.DataFrame, log_mass: float):
    """(run_id, dead at each update, length of each update) of every run, in the order of the table."""
    for run_id, own in metrics.groupby("run_id", sort=False, observed=True):
        own = own.sort_values("update", kind="stable")
        if own["update"].tolist() != list(range(1, len(own) + 1)):
            raise ValueError(
                f"run {run_id} does not hold its updates 1 to {len(own)} once each; the dead zone is read from tables "
                "with every update (tuning tables keep none)"
            )
        mass = own["log_mass_mean"].to_numpy(dtype=float)
        dead = np.isnan(mass) | (mass <= log_mass)  # NaN: no group has any mass
        yield run_id, dead, own["update_length"].to_numpy(dtype=float)


def _stretches(dead: np.ndarray, at_least: int) -> list[tuple[int, int]]:
    """[start, stop) of every run of at least `at_least` dead updates, counted from 0."""
    padded = np.concatenate([[False], dead, [False]]).astype(int)
    change = np.diff(padded)
    starts, stops = np.flatnonzero(change == 1), np.flatnonzero(change == -1)
    return [(int(a), int(b)) for a, b in zip(starts, stops, strict=True) if b - a >= at_least]
