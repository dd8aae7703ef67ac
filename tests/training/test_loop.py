"""A run is a function of its config: whole, interrupted, killed, damaged or finished."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from gmc_core import paths
from gmc_core.estimators import METRICS
from gmc_core.rollouts.remembered import RolloutMemory
from gmc_core.training.checkpoints import load_checkpoint
from gmc_core.training.learner import Learner
from gmc_core.training.loop import summarize, train
from gmc_core.training.run_config import LATER_FIELDS, RunConfig
from gmc_core.training.run_directory import CHECKPOINT, RunClaimedError, RunDirectory
from tests.models import random_policy

CONFIG = RunConfig(
    delay=2, updates=6, evaluation_every=2, evaluation_prompts=8, prompts_per_update=2, group_size=4, optimizer="adamw",
    learning_rate=1e-3,
)  # fmt: skip
BYTES = ("metrics.jsonl", "evaluations.jsonl", "policy.safetensors", "summary.json")


class Stop(Exception):
    pass


def stop_at(update):
    def on_update(row):
        if row["update"] == update:
            raise Stop

    return on_update


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return train(CONFIG, root=tmp_path_factory.mktemp("whole"))


def contents(path):
    return {name: (path / name).read_bytes() for name in BYTES}


def test_record_of_a_run(whole):
    assert [row["update"] for row in whole.metrics] == [1, 2, 3, 4, 5, 6]
    assert [row["staleness"] for row in whole.metrics] == [0, 1, 2, 2, 2, 2]
    assert [row["update"] for row in whole.evaluations] == [0, 2, 4, 6]
    assert whole.provenance["model_fingerprint"] and whole.provenance["seconds"]["cpu"] > 0
    accuracy = [row["accuracy"] for row in whole.evaluations][1:]
    assert whole.summary["area_under_curve"] == pytest.approx(sum(accuracy) / 3)
    named = set().union(*whole.metrics, *whole.evaluations, whole.summary)
    assert named <= set(METRICS), f"metrics without an entry in METRICS: {named - set(METRICS)}"
    assert not (whole.path / CHECKPOINT).exists()


def test_updates_that_share_a_batch_learn_from_one_policy_and_resume_like_any_other(tmp_path):
    config = CONFIG.replace(delay=1, updates_per_batch=2)
    record = train(config, root=tmp_path / "whole")
    assert [row["behavior_version"] for row in record.metrics] == [0, 0, 1, 1, 3, 3]
    assert [row["staleness"] for row in record.metrics] == [0, 1, 1, 2, 1, 2]
    with pytest.raises(Stop):
        train(config, root=tmp_path / "resumed", checkpoint_seconds=0, on_update=stop_at(3))
    assert contents(train(config, root=tmp_path / "resumed").path) == contents(record.path)


def test_runs_that_begin_alike_share_the_rollouts_of_their_initial_policy(whole, tmp_path):
    memory = RolloutMemory()
    for hits, estimator in ((0, "gmc"), (3, "tic_mask"), (6, "gmc")):  # three updates learn from version 0
        config = CONFIG.replace(estimator=estimator)
        record = train(config, root=tmp_path / str(hits), memory=memory)
        assert memory.hits == hits
        expected = whole if estimator == "gmc" else train(config, root=tmp_path / "alone")
        assert contents(record.path) == contents(expected.path)
    with pytest.raises(Stop):
        train(CONFIG, root=tmp_path / "resumed", checkpoint_seconds=0, on_update=stop_at(2), memory=memory)
    assert contents(train(CONFIG, root=tmp_path / "resumed", memory=memory).path) == contents(whole.path)


def test_a_finished_run_is_reused(whole):
    before = {path: path.stat().st_mtime_ns for path in whole.path.iterdir()}
    again = train(CONFIG, root=whole.path.parent)
    assert again.metrics == whole.metrics
    assert {path: path.stat().st_mtime_ns for path in whole.path.iterdir()} == before


def test_a_record_from_before_a_field_existed_is_reused(whole, tmp_path):
    path = train(CONFIG, root=tmp_path).path
    content = json.loads((path / "config.json").read_text())
    for name in LATER_FIELDS:
        del content["config"][name]
    (path / "config.json").write_text(json.dumps(content))
    assert train(CONFIG, root=tmp_path).metrics == whole.metrics
    assert not list(tmp_path.glob("*damaged*"))


@pytest.mark.parametrize("update", [1, 3, 5])
def test_an_interrupted_run_resumes_to_the_same_bytes(whole, tmp_path, update):
    with pytest.raises(Stop):
        train(CONFIG, root=tmp_path, checkpoint_seconds=0, on_update=stop_at(update))
    record = train(CONFIG, root=tmp_path)
    assert contents(record.path) == contents(whole.path)


def test_a_killed_process_resumes_to_the_same_bytes(whole, tmp_path):
    script = (
        "import sys, torch; torch.set_num_threads(1)\n"
        "from pathlib import Path\n"
        "from gmc_core.training.loop import train\n"
        "from gmc_core.training.run_config import RunConfig\n"
        "config = RunConfig.from_dict(__import__('json').loads(sys.argv[1]))\n"
        "train(config, root=Path(sys.argv[2]), checkpoint_seconds=0)\n"
    )
    command = [sys.executable, "-c", script, json.dumps(CONFIG.to_dict()), str(tmp_path)]
    process = subprocess.Popen(command, cwd=paths.ROOT)
    lines = tmp_path / CONFIG.run_id / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not (lines.exists() and lines.read_bytes().count(b"\n") >= 3):
        assert time.monotonic() < deadline and process.poll() is None, "the run ended before it could be killed"
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    record = train(CONFIG, root=tmp_path)  # the claim died with its holder
    assert contents(record.path) == contents(whole.path)


def test_half_written_lines_are_dropped_on_resume(whole, tmp_path):
    with pytest.raises(Stop):
        train(CONFIG, root=tmp_path, checkpoint_seconds=0, on_update=stop_at(4))
    with open(tmp_path / CONFIG.run_id / "metrics.jsonl", "a") as file:
        file.write('{"update": 5, "rew')
    assert contents(train(CONFIG, root=tmp_path).path) == contents(whole.path)


@pytest.mark.parametrize("damage", ["metrics", "summary", "config", "checkpoint"])
def test_a_damaged_record_is_set_aside_reported_and_rebuilt(whole, tmp_path, damage):
    if damage == "checkpoint":
        with pytest.raises(Stop):
            train(CONFIG, root=tmp_path, checkpoint_seconds=0, on_update=stop_at(4))
        (tmp_path / CONFIG.run_id / CHECKPOINT).write_bytes(b"half a checkpoint")
    else:
        path = train(CONFIG, root=tmp_path).path
        if damage == "metrics":
            (path / "metrics.jsonl").write_bytes((path / "metrics.jsonl").read_bytes()[:-300])
        else:
            (path / f"{damage}.json").write_text('{"conf')
    with pytest.warns(UserWarning, match="set aside as .*damaged-1"):
        record = train(CONFIG, root=tmp_path)
    assert contents(record.path) == contents(whole.path)
    assert (tmp_path / f"{CONFIG.run_id}.damaged-1").is_dir()


def test_one_process_owns_a_run(tmp_path):
    holder = RunDirectory(tmp_path, CONFIG, "fingerprint")
    with holder.claim(), pytest.raises(RunClaimedError, match="another process"):
        train(CONFIG, root=tmp_path)


def test_a_checkpoint_of_another_model_or_config_is_refused(tmp_path):
    with pytest.raises(Stop):
        train(CONFIG, root=tmp_path, checkpoint_seconds=0, on_update=stop_at(3))
    policy, path = random_policy(), tmp_path / CONFIG.run_id / CHECKPOINT
    with pytest.raises(ValueError, match="another initial model"):
        load_checkpoint(path, fingerprint=policy.fingerprint, digest=CONFIG.digest)
    saved = json.loads((tmp_path / CONFIG.run_id / "config.json").read_text())["fingerprint"]
    with pytest.raises(ValueError, match="another config"):
        load_checkpoint(path, fingerprint=saved, digest="00000000")
    state = load_checkpoint(path, fingerprint=saved, digest=CONFIG.digest)
    with pytest.raises(ValueError, match="another model"):
        Learner(policy, CONFIG).load_state_dict(state["learner"])


def test_training_improves_the_policy(tmp_path):
    record = train(RunConfig(updates=15, evaluation_every=15, evaluation_prompts=512), root=tmp_path)
    start, end = (row["accuracy"] for row in record.evaluations)
    assert end > start + 0.15, f"sampled accuracy went from {start:.3f} to {end:.3f} in 15 on-policy updates"


def test_summary_counts_a_run_that_never_rose_as_collapsed():
    def rows(*accuracy):
        return [{"update": 10 * k, "accuracy": value} for k, value in enumerate(accuracy)]

    assert summarize(rows(0.2, 0.0, 0.0))["collapsed"] == 1.0
    assert summarize(rows(0.2, 0.9, 0.4))["collapsed"] == 1.0
    fine = summarize(rows(0.2, 0.9, 0.6))
    assert fine == {
        "initial_accuracy": 0.2,
        "final_accuracy": 0.6,
        "best_accuracy": 0.9,
        "area_under_curve": 0.75,
        "collapsed": 0.0,
    }
