"""Compact tables: what is written is what is read, and a broken table says so."""

import json

import numpy as np
import pandas as pd
import pytest

from gmc_core import METRICS, load_runs
from gmc_core.experiments.grids import EXPERIMENTS, get_experiment
from gmc_core.experiments.run_grid import experiment_tables, run_experiment
from gmc_core.reporting.run_records import round_mantissa, write_tables
from gmc_core.rollouts.packaged_models import PACKAGED
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
    experiment = replace(SMOKE, runs=(broken, SMOKE.configs[1]))
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


def test_tables_grow_over_several_sessions(folders, tmp_path):
    """Half of the runs, committed; the other half in a checkout without build/runs: the same tables in the end."""
    from dataclasses import replace

    half, order = SMOKE.configs[::2], [config.run_id for config in SMOKE.configs]
    outcome = run_experiment(replace(SMOKE, runs=half), build_root=folders[1], report=lambda _: None)
    write_tables("smoke", SMOKE.version, SMOKE.protocol, outcome.records, order=order, root=tmp_path)
    with pytest.raises(FileNotFoundError, match=r"3 of 6 runs .* ONLY=smoke.* goes on"):
        load_runs("smoke", root=tmp_path)
    partial = load_runs("smoke", root=tmp_path, allow_partial=True)
    assert not partial.complete and partial.runs["run_id"].tolist() == order[::2]

    provenance = json.loads((tmp_path / "smoke" / "provenance.json").read_text())
    there = provenance["machine"] | {"processor": "of another machine"}
    (tmp_path / "smoke" / "provenance.json").write_text(json.dumps(provenance | {"machine": there}))

    build = tmp_path / "build"
    grown = experiment_tables(SMOKE, recompute=True, tables_root=tmp_path, build_root=build, report=lambda _: None)
    assert sorted(path.name for path in (build / "smoke").iterdir() if path.is_dir()) == sorted(order[1::2])
    whole = load_runs("smoke", root=folders[0])
    assert grown.complete and whole.complete
    assert grown.provenance["machine"] == whole.provenance["machine"] == provenance["machine"]
    assert grown.provenance["other_machine"] == [there] and "other_versions" not in grown.provenance
    timings = ["wall_seconds", "cpu_seconds"]
    pd.testing.assert_frame_equal(grown.runs.drop(columns=timings), whole.runs.drop(columns=timings))
    pd.testing.assert_frame_equal(grown.metrics, whole.metrics)
    pd.testing.assert_frame_equal(grown.evaluations, whole.evaluations)


def test_committed_tables_belong_to_their_experiments():
    """Every committed table holds exactly the runs of its grid (or those done so far), from the committed models."""
    from gmc_core import paths

    committed = [folder for folder in sorted(paths.COMMITTED_RUNS.iterdir()) if (folder / "provenance.json").exists()]
    assert committed, "no committed run tables"
    for folder in committed:
        experiment = EXPERIMENTS[folder.name]
        runs = load_runs(folder.name, allow_partial=True)
        found, expected = set(runs.runs["run_id"]), {config.run_id for config in experiment.configs}
        assert found == expected if runs.complete else found < expected
        assert runs.provenance["version"] == experiment.version
        assert (runs.probes is not None) == (experiment.probe is not None)
        assert (runs.events is not None) == (runs.ledgers is not None) == experiment.timed
        for model, group in runs.runs.groupby("model"):
            if model in PACKAGED:
                assert runs.provenance["model_revision"].startswith(PACKAGED[model].distribution)
                assert group["model_fingerprint"].nunique() == 1
                continue
            warm_start = json.loads((paths.ROOT / model / "warm_start.json").read_text())["fingerprint"]
            assert set(group["model_fingerprint"]) == {warm_start}


def test_committed_protocols_are_those_of_the_code():
    from gmc_core import paths

    for experiment in EXPERIMENTS.values():
        path = paths.COMMITTED_RUNS / experiment.name / "protocol.md"
        if experiment.name != "smoke":
            assert path.read_text(encoding="utf-8") == experiment.protocol, f"{path}: run with --protocols"


def test_tables_without_metrics_keep_the_columns(folders, tmp_path):
    from dataclasses import replace

    lean = replace(SMOKE, keep_metrics=False)
    tables = experiment_tables(lean, recompute=True, tables_root=tmp_path, build_root=folders[1], report=lambda _: None)
    full = load_runs("smoke", root=folders[0])
    assert len(tables.metrics) == 0 and list(tables.metrics.columns) == list(full.metrics.columns)
    pd.testing.assert_frame_equal(tables.evaluations, full.evaluations)


def test_metrics_are_rounded_by_less_than_they_are_plotted_at(folders):
    values = np.float32([0.0, 1.0, -1.0, 1 / 3, -1e-20, 123456.7, 3.4e38, np.nan, np.inf, -np.inf])
    rounded = round_mantissa(values)
    np.testing.assert_allclose(rounded[:6], values[:6], rtol=2.0**-13)
    np.testing.assert_array_equal(rounded[7:], values[7:])
    assert (rounded[[0, 1, 2]] == values[[0, 1, 2]]).all()
    assert (rounded[:6].view(np.uint32) % 2**11 == 0).all()
    records = [json.loads(line) for line in _lines(folders[1] / "smoke" / SMOKE.configs[0].run_id / "metrics.jsonl")]
    table = load_runs("smoke", root=folders[0]).metrics
    own = table[table["run_id"] == SMOKE.configs[0].run_id]
    for name in ("loss", "log_mass_mean", "grad_norm"):
        np.testing.assert_allclose(own[name], [row[name] for row in records], rtol=2.0**-13)


def _lines(path):
    return path.read_text().splitlines()
