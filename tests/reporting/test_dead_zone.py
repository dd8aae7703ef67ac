"""The dead zone, on tables small enough to read."""

import math

import numpy as np
import pandas as pd
import pytest

from gmc_core import load_runs
from gmc_core.reporting.dead_zone import before_first_stretch, dead_after_length, dead_stretches, dead_summary

D = -5.0  # dead
NAN = math.nan


def table(**runs):
    """Metrics of runs given as (log masses, lengths)."""
    frames = [
        pd.DataFrame(
            {"run_id": name, "update": range(1, len(mass) + 1), "log_mass_mean": mass, "update_length": length}
        )
        for name, (mass, length) in runs.items()
    ]
    return pd.concat(frames, ignore_index=True)


RUNS = table(
    falls=([0, 0, -0.1, D, D, NAN, D, D], [0.1, 0.4, 0.3, 0, 0, 0, 0, 0]),
    returns=([0, D, D, D, -0.2, 0, D, 0], [0.2, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1]),
    lives=([0, 0, 0, 0, 0, 0, 0, 0], [0.2, 0.2, 0.1, 0.1, 0.1, 0.1, 0.1, 0.3]),
)


def test_stretches_with_what_came_before_them():
    rows = dead_stretches(RUNS).to_dict("records")
    columns = ("run_id", "start", "stop", "updates", "escaped", "last_length", "longest_length")
    assert rows == [
        dict(zip(columns, ("falls", 4, 8, 5, False, 0.3, 0.4), strict=True)),
        dict(zip(columns, ("returns", 2, 4, 3, True, 0.2, 0.2), strict=True)),
    ]
    assert len(dead_stretches(RUNS, at_least=1)) == 3  # one bad batch of `returns` counts too
    assert dead_stretches(RUNS, log_mass=-6.0, at_least=1)["run_id"].tolist() == ["falls"]  # mass 0 is below any level


def test_a_run_dead_from_its_first_update_has_nothing_before():
    (row,) = dead_stretches(table(born=([D] * 4, [0.0] * 4))).to_dict("records")
    assert row["start"] == 1 and math.isnan(row["last_length"]) and math.isnan(row["longest_length"])


def test_share_of_updates_that_are_followed_by_death():
    """Live updates with a known sequel: falls 1-3, returns 1, 5-7, lives 1-7."""
    found = dead_after_length(RUNS, (0.0, 0.15, 0.25, math.inf))
    assert found["updates"].tolist() == [1 + 3 + 5, 1 + 2, 2]
    assert found["followed"].tolist() == [0, 1, 1]
    np.testing.assert_allclose(found["share"], [0, 1 / 3, 1 / 2])
    wider = dead_after_length(RUNS, (0.0, 0.15, 0.25, math.inf), within=3)
    assert wider["followed"].tolist() == [1, 1, 2]  # all three updates before the fall of the first run
    assert math.isnan(dead_after_length(RUNS, (1.0, 2.0))["share"][0])


def test_what_leads_to_the_first_stretch_counts_each_update_once():
    """returns falls at 2 and would fall again at 7 if one bad batch counted; shared is lives up to update 5."""
    shared = table(shared=([0, 0, 0, 0, 0, D, D, D], [0.2, 0.2, 0.1, 0.1, 0.3, 0.1, 0.1, 0.1]))
    runs = pd.DataFrame({"run_id": ["falls", "returns", "lives", "shared"], "estimator": ["is", "is", "gmc", "gmc"]})
    found = before_first_stretch(pd.concat([RUNS, shared]), runs, within=2)
    rows = found.groupby("run_id")[["update", "followed"]].agg(list)
    assert rows.loc["falls"].tolist() == [[1, 2, 3], [False, True, True]]
    assert rows.loc["returns"].tolist() == [[1], [True]]
    assert rows.loc["lives", "update"] == [1, 2, 3, 4, 5, 6] and not any(rows.loc["lives", "followed"])
    assert rows.loc["shared"].tolist() == [[5], [True]]  # 1 to 4 are those of lives
    assert set(before_first_stretch(RUNS, runs.iloc[2:3])["run_id"]) == {"lives"}


def test_rows_may_come_in_any_order():
    shuffled = RUNS.sample(frac=1.0, random_state=0)
    pd.testing.assert_frame_equal(
        dead_stretches(shuffled).sort_values("run_id", ignore_index=True),
        dead_stretches(RUNS).sort_values("run_id", ignore_index=True),
    )


def test_summary_by_setting():
    runs = pd.DataFrame({"run_id": ["falls", "returns", "lives"], "estimator": ["is", "gmc", "gmc"], "delay": 64})
    found = dead_summary(RUNS, runs).to_dict("records")
    assert found == [
        {"estimator": "is", "delay": 64, "runs": 1, "entered": 1, "ended": 1, "share": 5 / 8},
        {"estimator": "gmc", "delay": 64, "runs": 2, "entered": 1, "ended": 0, "share": 3 / 16},
    ]


def test_what_cannot_be_read_is_refused():
    with pytest.raises(ValueError, match=r"run lives does not hold its updates 1 to 7 once each"):
        dead_stretches(RUNS.drop(index=RUNS.index[-3]))
    with pytest.raises(ValueError, match="ascending bounds"):
        dead_after_length(RUNS, (0.2, 0.1))
    with pytest.raises(ValueError, match="within=0"):
        dead_after_length(RUNS, (0.1, 0.2), within=0)


def test_committed_runs_show_it_and_on_policy_runs_do_not():
    tables = load_runs("first_staleness")
    summary = dead_summary(tables.metrics, tables.runs).set_index(["estimator", "delay"])
    assert (summary.loc[(slice(None), 0), "entered"] == 0).all()
    assert summary.loc[("is", 32), "ended"] == 3 == summary.loc[("is", 32), "runs"]
    assert summary["share"].between(0, 1).all() and (summary["ended"] <= summary["entered"]).all()
