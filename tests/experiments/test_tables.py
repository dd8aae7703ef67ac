"""Compact tables: what is written is what is read, and a broken table says so."""

import json

import pandas as pd
import pytest

from gmc_core import METRICS, load_runs
from gmc_core.experiments.grids import EXPERIMENTS, get_experiment
from gmc_core.experiments.run_grid import experiment_tables, run_experiment
from gmc_core.reporting.run_records import write_tables
from gmc_core.training.run_directory import DamagedRecordError

SMOKE = get_experiment("smoke")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    tables, build = tmp_path_factory.mktemp("tables"), tmp_path_factory.mktemp("build")
    lines = []
    experiment_tables(SMOKE, tables_root=tables, build_root=build, report=lines.append)
    assert len(lines) == len(SMOKE.configs) and "min left" in lines[0]
    return tables, build


def test_every_run_is_in_the_tables(folders):
    runs = load_runs("smoke", root=folders[0])
    assert runs.runs["run_id"].tolist() == [config.run_id for config in SMOKE.configs]
    assert len(runs.metrics) == 4 * len(SMOKE.configs) and len(runs.evaluations) == 3 * len(SMOKE.configs)
    assert set(runs.metrics.columns) - {"run_id"} <= set(METRICS)
    joined = runs.with_config("evaluations")
    final = joined[joined["update"] == 4].set_index("run_id")["accuracy"]
    expected = runs.runs.set_index("run_id")["final_accuracy"]
    pd.testing.assert_series_equal(final.sort_index(), expected.sort_index(), check_names=False, check_dtype=False)
    assert runs.provenance["runs"] == len(SMOKE.configs) and runs.provenance["cpu_seconds"] > 0


def test_complete_tables_are_read_not_recomputed(folders, tmp_path):
    report = []
    again = experiment_tables(SMOKE, tables_root=folders[0], build_root=tmp_path, report=report.append)
    assert not report and not list(tmp_path.iterdir())
    assert again.data_hash == load_runs("smoke", root=folders[0]).data_hash


def test_recomputing_gives_the_same_curves(folders, tmp_path):
    again = experiment_tables(SMOKE, recompute=True, tables_root=tmp_path / "tables", build_root=tmp_path / "build")
    first = load_runs("smoke", root=folders[0])
    pd.testing.assert_frame_equal(again.metrics, first.metrics)
    pd.testing.assert_frame_equal(again.evaluations, first.evaluations)


@pytest.mark.parametrize("table", ["runs.csv", "metrics.parquet", "evaluations.parquet", "provenance.json"])
def test_a_half_written_table_is_an_error_that_says_what_to_do(folders, tmp_path, table):
    import shutil

    shutil.copytree(folders[0] / "smoke", tmp_path / "smoke")
    path = tmp_path / "smoke" / table
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(DamagedRecordError, match="make experiments ONLY=smoke"):
        load_runs("smoke", root=tmp_path)


def test_missing_tables_say_how_to_make_them(tmp_path):
    with pytest.raises(FileNotFoundError, match="make experiments ONLY=elsewhere"):
        load_runs("elsewhere", root=tmp_path)
    with pytest.raises(ValueError, match="no finished run"):
        write_tables("empty", 1, "", [], root=tmp_path)


def test_a_failing_run_is_named_and_the_others_are_kept(folders, tmp_path):
    from dataclasses import replace

    broken = SMOKE.configs[0].replace(model=str(tmp_path / "nowhere"))
    experiment = replace(SMOKE, configs=(broken, SMOKE.configs[1]))
    outcome = run_experiment(experiment, processes=1, build_root=folders[1], report=lambda line: None)
    assert list(outcome.failed) == [broken.run_id] and "FileNotFoundError" in outcome.failed[broken.run_id]
    assert [record.config.run_id for record in outcome.records] == [SMOKE.configs[1].run_id]
    with pytest.raises(RuntimeError, match="1 of 2 runs of smoke are not finished"):
        experiment_tables(
            experiment,
            recompute=True,
            processes=1,
            tables_root=tmp_path,
            build_root=folders[1],
            report=lambda line: None,
        )


def test_committed_tables_belong_to_their_experiments():
    """Every committed table holds exactly the runs of its grid, and its protocol is the grid's."""
    from gmc_core import paths

    committed = [folder for folder in sorted(paths.COMMITTED_RUNS.iterdir()) if folder.is_dir()]
    assert committed, "no committed run tables"
    for folder in committed:
        experiment = EXPERIMENTS[folder.name]
        runs = load_runs(folder.name)
        assert set(runs.runs["run_id"]) == {config.run_id for config in experiment.configs}
        assert runs.provenance["version"] == experiment.version
        assert (folder / "protocol.md").read_text(encoding="utf-8") == experiment.protocol
        warm_start = json.loads((paths.TINY_QWEN3 / "warm_start.json").read_text())["fingerprint"]
        assert set(runs.runs["model_fingerprint"]) == {warm_start}
