"""Timelines of live runs: what is read of a record, what the pace leaves out, and the tables of a timed experiment."""

import json

import numpy as np
import pandas as pd
import pytest

from gmc_core import RunConfig, load_runs
from gmc_core.experiments import __main__ as command
from gmc_core.experiments.experiment import Experiment
from gmc_core.experiments.grids import EXPERIMENTS
from gmc_core.experiments.run_grid import experiment_tables
from gmc_core.reporting.figures.live_timeline import figure_data
from gmc_core.reporting.timelines import COLUMNS, RunTimeline, pace, pace_table, staleness_shares
from gmc_core.training.run_directory import DamagedRecordError

SMALL = RunConfig(
    schedule="bounded_staleness", in_flight_updates=True, updates=7, evaluation_every=7, evaluation_prompts=8,
    prompts_per_update=2, group_size=4, verifier_processes=0,
)  # fmt: skip
TIMED = Experiment(
    name="live_timeline",
    version=1,
    question="?",
    protocol="A test.\n",
    runs=(SMALL.replace(max_staleness=2), SMALL.replace(max_staleness=0)),
    timed=True,
)


def event(worker, kind, start, end, **more):
    return {"worker": worker, "kind": kind, "start": start, "end": end, "version": 0, "update": 0} | more


def by_hand():
    """Two updates; the worker generates 1.0 of 2.0 s, the learner learns 1.2 s, waits 0.5 s and publishes 0.1 s."""
    return RunTimeline(
        [
            event("rollouts-0", "start", 90.0, 99.0),
            event("learner", "learn", 100.6, 101.2, staleness=0.0, staleness_max=0),
            event("rollouts-0", "generate", 100.0, 100.5, tokens=8),
            event("learner", "wait", 99.5, 100.5),
            event("rollouts-0", "load_weights", 101.2, 101.4),
            event("learner", "publish", 101.2, 101.3),
            event("rollouts-0", "generate", 101.5, 102.0, tokens=8),
            event("learner", "learn", 101.4, 102.0, staleness=0.5, staleness_max=1),
        ],
        {"staleness_rollouts": {"0": 3, "1": 1}},
    )


def test_time_starts_with_the_first_token():
    table = by_hand().table()
    assert table.columns.tolist() == list(COLUMNS)
    assert table["start"].tolist() == pytest.approx([-10.0, -0.5, 0.0, 0.6, 1.2, 1.2, 1.4, 1.5])
    assert table["tokens"].dropna().tolist() == [8, 8]
    with pytest.raises(ValueError, match="no event of kind 'generate'"):
        RunTimeline([event("learner", "learn", 0.0, 1.0)], {}).table()


def test_the_pace_of_a_run():
    table = by_hand().table()
    whole = pace(table)
    assert whole.updates == 2
    assert whole.wall == pytest.approx(1.0)
    assert (whole.generate, whole.load, whole.learn) == pytest.approx((0.5, 0.1, 0.6))
    assert (whole.publish, whole.wait, whole.idle) == pytest.approx((0.05, 0.25, 0.4))  # the wait before 0 is cut off
    assert whole.efficiency == pytest.approx(0.6)
    second, first = pace(table, skip=1), pace(table, rest=1)
    assert (second.wall, second.generate, second.learn, second.wait) == pytest.approx((0.8, 0.5, 0.6, 0.0))
    assert (first.wall, first.learn, first.wait) == pytest.approx((1.2, 0.6, 0.5))
    for skip, rest in ((2, 0), (1, 1), (-1, 0), (0, -1)):
        with pytest.raises(ValueError, match=f"skip={skip}, rest={rest} and a run of 2 updates"):
            pace(table, skip=skip, rest=rest)


def test_generation_is_that_of_one_of_several_workers():
    events = [row | {"worker": "rollouts-1"} for row in by_hand().events if row["kind"] == "generate"]
    assert pace(RunTimeline([*by_hand().events, *events[:1]], {}).table()).generate == pytest.approx(0.375)


def test_speed_up_and_what_was_attained_are_against_the_same_updates_of_the_first_run():
    slow, fast = by_hand().table(), by_hand().table()
    fast[["start", "end"]] /= 2
    table = pace_table({0: slow, 1: fast})  # k = 1: the first update alone, 1.2 s there with 0.6 s of learning
    assert table["updates"].tolist() == [2, 1]
    assert table["wall"].tolist() == pytest.approx([1.0, 0.6])
    assert table["speed_up"].tolist() == pytest.approx([1.0, 2.0])
    assert table["attained"].tolist() == pytest.approx([0.6, 1.0])
    assert table["efficiency"].tolist() == pytest.approx([0.6, 0.5])


def test_shares_of_staleness():
    assert staleness_shares(by_hand().ledger) == {0: 0.75, 1: 0.25}


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    root = tmp_path_factory.mktemp("timed")
    experiment_tables(TIMED, tables_root=root / "tables", build_root=root / "build", report=lambda line: None)
    return root / "tables", root / "build" / TIMED.name


def test_tables_of_a_timed_experiment_hold_timelines_and_ledgers(roots):
    tables = load_runs("live_timeline", root=roots[0])
    ids = [config.run_id for config in TIMED.configs]
    assert list(tables.ledgers) == tables.runs["run_id"].tolist() == ids
    for config in TIMED.configs:
        rows = tables.events[tables.events["run_id"] == config.run_id]
        lines = (roots[1] / config.run_id / "events.jsonl").read_text().splitlines()
        assert len(rows) == len(lines) and rows.loc[rows["kind"] == "generate", "start"].min() == 0
        ledger = tables.ledgers[config.run_id]
        assert ledger["issued"] == sum(ledger["counts"].values()) == 14
        assert sum(ledger["staleness_rollouts"].values()) == 56
        assert max(map(int, ledger["staleness_rollouts"])) <= config.max_staleness
    assert "live" not in tables.provenance


def test_a_changed_ledger_is_noticed(roots, tmp_path):
    import shutil

    shutil.copytree(roots[0] / "live_timeline", tmp_path / "live_timeline")
    path = tmp_path / "live_timeline" / "ledgers.json"
    path.write_text(path.read_text().replace("14", "15"))
    with pytest.raises(DamagedRecordError, match="their provenance says"):
        load_runs("live_timeline", root=tmp_path)


def test_figure_1_shows_what_the_record_holds(roots):
    tables = load_runs("live_timeline", root=roots[0])
    data = figure_data(tables)
    assert data["bound"].tolist() == [0, 2] and data["lanes"].tolist() == ["rollouts-0", "learner"]
    for k, config in enumerate((TIMED.configs[1], TIMED.configs[0])):
        record = [json.loads(line) for line in (roots[1] / config.run_id / "metrics.jsonl").read_text().splitlines()]
        mine = data["batch_run"] == k
        assert data["batch_staleness"][mine] == pytest.approx([row["staleness"] for row in record])
        assert data["batch_staleness_max"][mine].tolist() == [row["staleness_max"] for row in record]
        assert data["share_share"][data["share_run"] == k].sum() == pytest.approx(1)
        learned = (data["event_run"] == k) & (data["event_kind"] == "learn")
        np.testing.assert_allclose(data["event_start"][learned], data["batch_start"][mine])
    assert (data["event_start"] >= 0).all() and (data["event_end"] >= data["event_start"]).all()
    assert data["pace_speed_up"][0] == 1 and (data["pace_efficiency"] <= 1).all()
    with pytest.raises(ValueError, match="not timelines of one run for each max_staleness"):
        figure_data(type(tables)(tables.name, pd.concat([tables.runs] * 2), None, None, {}, None, tables.events))


def test_an_interrupted_run_is_no_measurement(roots, tmp_path):
    import shutil

    folder = tmp_path / "run"
    shutil.copytree(roots[1] / TIMED.configs[0].run_id, folder)
    lines = (folder / "events.jsonl").read_text().splitlines()
    (start,) = [line for line in lines if json.loads(line)["kind"] == "start"]
    (folder / "events.jsonl").write_text("\n".join([*lines, start]) + "\n")
    with pytest.raises(DamagedRecordError, match=r"interrupted and resumed.* Delete the folder"):
        RunTimeline.read(folder)
    lost = json.dumps(event("rollouts-0", "lost", 0.0, 0.0))
    (folder / "events.jsonl").write_text("\n".join([*lines, lost, start]) + "\n")
    RunTimeline.read(folder)  # a worker was replaced: that is what the run did with its time
    (folder / "ledger.json").unlink()
    with pytest.raises(DamagedRecordError, match="no timeline of a live run"):
        RunTimeline.read(folder)


def test_timed_experiments_are_only_run_when_named(monkeypatch, capsys):
    class Tables:
        runs, data_hash = (), "none"

    made = []
    monkeypatch.setattr(command, "experiment_tables", lambda found, **_: made.append(found.name) or Tables)
    assert command.main([]) == 0
    assert made == [name for name, found in EXPERIMENTS.items() if not (name == "smoke" or found.timed or found.extra)]
    assert "live_curves" in made and "live_timeline" not in made and "gpu_night" not in made
    assert command.main(["--only", "live_timeline"]) == 0 and made[-1] == "live_timeline"
    assert "live_timeline: 0 runs" in capsys.readouterr().out
