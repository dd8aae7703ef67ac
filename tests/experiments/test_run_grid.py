"""Running an experiment in parts: a deadline, runs shared between experiments, probes along the runs."""

import time
from dataclasses import replace

import pytest

from gmc_core.experiments.grids import get_experiment
from gmc_core.experiments.probing import ProbeSchedule
from gmc_core.experiments.run_grid import _train, experiment_tables, run_experiment
from gmc_core.training.fidelity import ProbePlan

SMOKE = get_experiment("smoke")
SMALL = replace(SMOKE, name="small", runs=(SMOKE.configs[0], SMOKE.configs[3]))
PLAN = ProbePlan(prompt_sets=2, stale_rollouts=8, fresh_rollouts=8, fresh_blocks=2, group_sizes=(4,))


def quiet(line):
    pass


def test_a_deadline_leaves_runs_for_the_next_session(tmp_path):
    outcome = run_experiment(SMALL, processes=1, build_root=tmp_path, report=quiet, deadline=time.monotonic() - 1)
    assert outcome.left == [config.run_id for config in SMALL.configs] and not outcome.records
    with pytest.raises(RuntimeError, match=r"(?s)2 of 2 runs of small .* run again to go on.*2 runs for which"):
        experiment_tables(
            SMALL, processes=1, build_root=tmp_path, tables_root=tmp_path, report=quiet, deadline=time.monotonic() - 1
        )


def test_finished_runs_are_read_after_the_deadline(tmp_path):
    _train(SMALL.configs[1], tmp_path / "small", None)
    outcome = run_experiment(SMALL, processes=1, build_root=tmp_path, report=quiet, deadline=time.monotonic() - 1)
    assert [record.config.run_id for record in outcome.records] == [SMALL.configs[1].run_id]
    assert outcome.left == [SMALL.configs[0].run_id]


def test_a_run_that_another_experiment_finished_is_copied(tmp_path):
    record, new = _train(SMALL.configs[0], tmp_path / "first", None)
    assert new
    copied, again = _train(SMALL.configs[0], tmp_path / "second", None)
    assert not again and copied.path.parent.name == "second"
    assert copied.metrics == record.metrics and copied.provenance == record.provenance
    assert sorted(path.name for path in (tmp_path / "second").iterdir() if path.is_dir()) == [record.config.run_id]
    other, new = _train(SMALL.configs[1], tmp_path / "second", None)  # not finished anywhere
    assert new and other.config == SMALL.configs[1]


def test_probes_become_a_table(tmp_path):
    probe = ProbeSchedule((2, 4), {name: {"estimator": name} for name in ("gmc", "is")}, PLAN)
    probed = replace(SMALL, name="probed", probe=probe)
    tables = experiment_tables(probed, processes=1, build_root=tmp_path / "b", tables_root=tmp_path, report=quiet)
    assert len(tables.probes) == 2 * 2 * 2
    assert set(tables.probes["run_id"]) == {config.run_id for config in probed.configs}
    seen = tables.probes.merge(tables.runs[["run_id", "delay"]], on="run_id")[["delay", "update", "staleness"]]
    assert set(seen.itertuples(index=False, name=None)) == {(0, 2, 0), (0, 4, 0), (2, 2, 2), (2, 4, 2)}
    folder = tmp_path / "b" / "probed" / probed.configs[0].run_id / "probes"
    assert [path.name for path in sorted(folder.iterdir())] == ["update-00002.json", "update-00004.json"]
    (folder / "update-00004.json").unlink()
    with pytest.raises(FileNotFoundError, match="no probe at update 4"):
        experiment_tables(
            probed, recompute=True, processes=1, build_root=tmp_path / "b", tables_root=tmp_path, report=quiet
        )


def test_a_probe_that_is_there_is_not_made_again(tmp_path):
    probe = ProbeSchedule((2,), {"gmc": {"estimator": "gmc"}}, PLAN)
    folder = tmp_path / SMALL.configs[0].run_id / "probes"
    record, _ = _train(SMALL.configs[0], tmp_path, probe)
    (path,) = folder.iterdir()
    first = path.read_bytes()
    (record.path / "summary.json").unlink()  # as if the run had been interrupted before its end
    stamp = path.stat().st_mtime_ns
    _train(SMALL.configs[0], tmp_path, probe)
    assert path.stat().st_mtime_ns == stamp
    path.unlink()
    (record.path / "summary.json").unlink()
    _train(SMALL.configs[0], tmp_path, probe)
    assert path.read_bytes() == first


def test_workers_end_when_their_parent_is_killed(tmp_path):
    """A killed command must not leave processes behind; its runs resume later."""
    import os
    import signal
    import subprocess
    import sys

    from gmc_core import paths

    code = f"""
from pathlib import Path
from gmc_core.experiments.grids import get_experiment
from gmc_core.experiments.run_grid import run_experiment
if __name__ == "__main__":
    run_experiment(get_experiment("first_staleness"), processes=1, build_root=Path({str(tmp_path)!r}))
"""
    script = tmp_path / "parent.py"
    script.write_text(code)
    environment = os.environ | {"PYTHONPATH": str(paths.ROOT)}
    parent = subprocess.Popen([sys.executable, str(script)], env=environment, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("first_staleness/*/metrics.jsonl")):
        assert time.monotonic() < deadline and parent.poll() is None
        time.sleep(0.1)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    (lock,) = tmp_path.glob("first_staleness/.*.lock")
    from filelock import FileLock

    with FileLock(lock, timeout=30):  # the worker held it and is gone
        pass
