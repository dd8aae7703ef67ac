"""The GPU tiers as experiments, shrunken to a CPU: grid, tables, results, benchmarks."""

import dataclasses
import math

import numpy as np
import pandas as pd
import pytest

from gmc_core.experiments.gpu_evaluation import evaluate_tier
from gmc_core.experiments.gpu_evaluation import main as evaluate_command
from gmc_core.experiments.grids import get_experiment
from gmc_core.experiments.run_grid import experiment_tables
from gmc_core.reporting import gpu_results
from gmc_core.reporting.evaluation import read_result
from gmc_core.reporting.figures import staleness
from gmc_core.reporting.run_comparisons import summary_table
from gmc_core.reporting.run_records import Runs
from gmc_core.training.gpu_tiers import TIERS
from tests.qwen3_like import save_qwen3
from tests.training.test_gpu_tiers import shrunk


@pytest.mark.parametrize("name", TIERS)
def test_each_tier_is_an_experiment_that_is_only_made_when_named(name):
    found = get_experiment(name)
    assert found.extra == "gpu" and found.configs == TIERS[name].runs
    assert "Not run by this project" in found.protocol and f"Expected: {len(found.configs)} runs" in found.protocol


def test_a_shrunken_tier_from_grid_to_results_and_benchmarks(tmp_path):
    """Through the commands' own functions; the live loop in this process, since a worker of its own takes seconds."""
    tier = shrunk(TIERS["gpu_night"], save_qwen3(tmp_path / "model", instruct=False))
    tier = dataclasses.replace(
        tier, name="shrunk", sweep=(), estimators=("gmc", "ppo_clip"), base=tier.base.replace(workers="inline")
    )
    experiment = dataclasses.replace(get_experiment("gpu_night"), name="shrunk", runs=tier.runs)
    lines = []
    tables = experiment_tables(
        experiment, processes=2, tables_root=tmp_path / "tables", build_root=tmp_path, report=lines.append
    )
    assert len(tables.runs) == 4 == len(lines) and tables.complete
    results = gpu_results.tier_results(tables)
    assert sorted(zip(results["estimator"], results["delay"], strict=True)) == [
        ("gmc", 0), ("gmc", 2), ("ppo_clip", 0), ("ppo_clip", 2)
    ]  # fmt: skip
    assert gpu_results.results_markdown(tables).count("\n") == 2 + 4
    assert set(summary_table(gpu_results.with_fifo_delay(tables), np.random.default_rng(0))["delay"]) == {0, 2}

    drawn = staleness.figure_data(gpu_results.at_step_size(tables, tier.learning_rate))
    assert list(drawn["delay"]) == [0, 2] and set(drawn["names"]) == {"gmc", "ppo_clip"}
    staleness.draw_common(drawn)
    with pytest.raises(ValueError, match="there are 1e-06"):
        gpu_results.at_step_size(tables, 0.1)

    picked = dataclasses.replace(tier, delays=(2,), estimators=("gmc",))
    (path,) = evaluate_tier(picked, tmp_path / "shrunk")
    assert read_result(path).settings["policy_version"] == 4
    with pytest.raises(FileNotFoundError, match="make experiments ONLY=shrunk"):
        evaluate_tier(tier, tmp_path / "nothing")


def made_up(accuracy):
    runs = pd.DataFrame(
        [{"run_id": "a", "estimator": "gmc", "delay": 0, "max_staleness": 67, "updates_per_batch": 4,
          "schedule": "bounded_staleness", "learning_rate": 1e-6, "seed": 0}]
    )  # fmt: skip
    evaluations = pd.DataFrame({"run_id": "a", "update": range(0, 10 * len(accuracy), 10), "accuracy": accuracy})
    return Runs("made_up", runs, pd.DataFrame(), evaluations, {}, None, None, None)


@pytest.mark.parametrize(
    ("accuracy", "best_update", "collapse"),
    [
        ((0.2, 0.5, 0.6, 0.5), 20, None),
        ((0.2, 0.6, 0.2, 0.5), 10, None),  # a dip
        ((0.2, 0.6, 0.2, 0.5, 0.1, 0.0), 10, 40),
        ((0.4, 0.1, 0.1), 0, 10),
    ],
)
def test_best_last_and_collapse_step(accuracy, best_update, collapse):
    (row,) = gpu_results.tier_results(made_up(accuracy)).itertuples()
    assert (row.delay, row.initial, row.best, row.best_update) == (64, accuracy[0], max(accuracy), best_update)
    assert row.last == accuracy[-1]
    assert math.isnan(row.collapse_update) if collapse is None else row.collapse_update == collapse


def test_commands_say_what_is_missing(capsys, monkeypatch, tmp_path):
    from gmc_core import paths

    monkeypatch.setattr(paths, "BUILD_RUNS", tmp_path)
    monkeypatch.setattr(paths, "COMMITTED_RUNS", tmp_path)
    assert gpu_results.main(["gpu_night"]) == 1 and evaluate_command(["gpu_night"]) == 1
    printed = capsys.readouterr().err
    assert printed.count("make experiments ONLY=gpu_night") == 2
