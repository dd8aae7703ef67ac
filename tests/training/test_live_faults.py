"""What goes wrong in a live run: it goes on, or stops with a message that helps; no group is lost or used twice."""

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gmc_core import files, paths
from gmc_core.files import DiskFullError
from gmc_core.rollouts.continuous import EngineLost
from gmc_core.rollouts.continuous_transformers import ContinuousTransformersEngine as Engine
from gmc_core.rollouts.tasks import TASKS
from gmc_core.rollouts.workers.process import ProcessWorker
from gmc_core.training import checkpoints
from gmc_core.training.fleet import RolloutFailure
from gmc_core.training.ledger import Ledger
from gmc_core.training.loop import train
from gmc_core.training.run_directory import CHECKPOINT
from gmc_core.training.worker_factory import KINDS, MemoryWeights, Workshop
from tests.training.faulty_tasks import FaultyVerifier
from tests.training.test_live_loop import CONFIG, IN_FLIGHT, Stop, contents, events_of, ledger_of, stop_at


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return train(CONFIG, root=tmp_path_factory.mktemp("whole"))


def ledger_in(path):
    ledger = Ledger.from_plain(json.loads((path / "ledger.json").read_text()))
    ledger.check()
    return ledger


# --- workers ---


def test_kill_9_of_a_rollout_process_mid_generation(whole, tmp_path, monkeypatch):
    """The new process is told what the killed one was, so the run writes the bytes of an undisturbed, inline one."""
    config = CONFIG.replace(workers="process")
    started = []

    class Remembered(ProcessWorker):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            started.append(self)

    def kill_once(row):
        if row["update"] == 3:  # groups of versions 1, 2 and 3 are still to be generated
            os.kill(started[0].pid, signal.SIGKILL)

    monkeypatch.setattr("gmc_core.rollouts.workers.process.ProcessWorker", Remembered)
    record = train(config, root=tmp_path, on_update=kill_once)
    assert len(started) == 2 and record.provenance["live"]["restarts"] == 1
    assert record.metrics == whole.metrics and record.evaluations == whole.evaluations
    (lost,) = (event for event in events_of(record) if event["kind"] == "lost")
    assert "lost while it worked" in lost["reason"] and lost["tickets"]
    assert record.provenance["live"]["reissued"] == len(lost["tickets"])
    ledger_of(record).check()


def fail_at(step, error, monkeypatch, method="step"):
    """The engine's `method` raises at its call number `step` of the whole run (-1: at each call)."""
    calls, original = [], getattr(Engine, method)

    def failing(self, *arguments):
        calls.append(1)
        if step in (-1, len(calls)):
            raise error
        return original(self, *arguments)

    monkeypatch.setattr(Engine, method, failing)


@pytest.mark.parametrize("step", [1, 33, 80])
def test_a_lost_engine_is_replaced_and_the_record_stays_the_same(whole, tmp_path, monkeypatch, step):
    fail_at(step, EngineLost("the machine has vanished"), monkeypatch)
    record = train(CONFIG, root=tmp_path)
    assert contents(record.path) == contents(whole.path)
    assert record.provenance["live"]["restarts"] == 1
    ledger_of(record).check()


def test_groups_of_a_lost_engine_are_issued_again_in_flight(tmp_path, monkeypatch):
    fail_at(30, EngineLost("the machine has vanished"), monkeypatch)
    record = train(IN_FLIGHT, root=tmp_path)
    ledger = ledger_of(record)
    ledger.check()
    assert ledger.reissued > 0 and ledger.counts()["dropped"] == 0 and ledger.issued == 16
    assert record.metrics[-1]["restarts"] == 1


def test_workers_that_keep_dying_stop_the_run(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        fail_at(-1, EngineLost("the machine has vanished"), patch)
        with pytest.raises(RolloutFailure, match=r"machine has vanished(?s:.)*max_restarts is 2") as caught:
            train(CONFIG.replace(max_restarts=2), root=tmp_path)
    assert "goes on from the beginning" in str(caught.value)


def broken_groups(monkeypatch, **changes):
    """From policy version 3 on the engine returns groups that are changed by `changes`."""
    import dataclasses

    step = Engine.step

    def broken(self):
        done = step(self)
        if self.policy_version < 3:
            return done
        return [
            (ticket, dataclasses.replace(group, **{name: change(group) for name, change in changes.items()}))
            for ticket, group in done
        ]

    monkeypatch.setattr(Engine, "step", broken)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"behavior_logp_GT": lambda group: group.behavior_logp_GT * float("nan")}, "log-probs are no log-probs"),
        ({"version_GT": lambda group: group.version_GT + 1}, r"tokens of policy versions \[4\]"),
    ],
    ids=["NaN log-probs", "wrong version"],
)
def test_an_engine_that_returns_nonsense_stops_the_run_which_can_go_on(whole, tmp_path, monkeypatch, changes, message):
    with monkeypatch.context() as patch:
        broken_groups(patch, **changes)
        with pytest.raises(RolloutFailure, match=message) as caught:
            train(CONFIG, root=tmp_path, checkpoint_seconds=1e9)
    # versions 0 to 2 gave five batches: they are kept, though no checkpoint was due
    assert "stopped after update 5 of 6" in str(caught.value) and "from the last checkpoint" in str(caught.value)
    assert ledger_in(tmp_path / CONFIG.run_id).counts()["trained"] == 10
    assert contents(train(CONFIG, root=tmp_path).path) == contents(whole.path)


def test_an_engine_that_ignores_an_update_is_found_by_the_probe(tmp_path, monkeypatch):
    update = Engine.update_weights

    def ignoring(self, weights, policy_version):
        if policy_version < 2:
            update(self, weights, policy_version)
        self.policy_version = policy_version

    monkeypatch.setattr(Engine, "update_weights", ignoring)
    config = CONFIG.replace(probe_tolerance=1e-3)
    with pytest.raises(RolloutFailure, match="loading policy version 2 its log-probs differ from the learner's"):
        train(config, root=tmp_path)
    assert (tmp_path / config.run_id / CHECKPOINT).exists()


def test_an_engine_that_cannot_start_says_why(tmp_path):
    config = CONFIG.replace(engine_options={"max_rollout": 8})
    with pytest.raises(RolloutFailure, match=r"could not start: ValueError: .*no option 'max_rollout'"):
        train(config, root=tmp_path)


def test_unknown_kinds_of_workers_and_weights_in_memory():
    assert set(KINDS) == {"inline", "process", "ray"}
    with pytest.raises(ValueError, match="inline, process, ray"):
        Workshop("thread")
    weights = {"w": torch.ones(2)}
    published = MemoryWeights()
    source = published.publish(3, weights)
    weights["w"].zero_()
    assert source.load()["w"].tolist() == [1.0, 1.0] and published.publish(3, weights) is source
    published.release(3)
    published.release(3)
    assert published.versions == ()


def test_no_room_for_the_weights_is_said_with_what_to_do(tmp_path, monkeypatch):
    def full(self, version, weights):
        raise OSError(errno.ENOSPC, f"cannot write the weights of policy version {version}")

    monkeypatch.setattr(MemoryWeights, "publish", full)
    with pytest.raises(RolloutFailure, match="cannot write the weights of policy version 0"):
        train(CONFIG, root=tmp_path)


# --- learner ---


def test_kill_9_of_the_learner_mid_step_and_resume(whole, tmp_path):
    script = (
        "import json, os, signal, sys, torch; torch.set_num_threads(1)\n"
        "from pathlib import Path\n"
        "from gmc_core.training.loop import train\n"
        "from gmc_core.training.run_config import RunConfig\n"
        "from gmc_core.training.step import OptimizerStep\n"
        "calls, take = [], OptimizerStep.take\n"
        "def killed(self):\n"
        "    calls.append(1)\n"
        "    return os.kill(os.getpid(), signal.SIGKILL) if len(calls) == 4 else take(self)\n"
        "OptimizerStep.take = killed\n"
        "train(RunConfig.from_dict(json.loads(sys.argv[1])), root=Path(sys.argv[2]), checkpoint_seconds=0)\n"
    )
    command = [sys.executable, "-c", script, json.dumps(CONFIG.to_dict()), str(tmp_path)]
    done = subprocess.run(command, cwd=paths.ROOT, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert ledger_in(tmp_path / CONFIG.run_id).counts()["trained"] == 6  # of the checkpoint after update 3
    record = train(CONFIG, root=tmp_path)
    assert contents(record.path) == contents(whole.path)
    assert ledger_of(record).updates == ledger_of(whole).updates


def test_weights_that_became_nan_stop_the_run_and_spoil_no_checkpoint(whole, tmp_path, monkeypatch):
    from gmc_core.training.step import OptimizerStep

    calls, take = [], OptimizerStep.take

    def poisoned(self):
        calls.append(1)
        metrics = take(self)
        if len(calls) == 3:
            self.parameters[0].data.fill_(float("nan"))
        return metrics

    with monkeypatch.context() as patch:
        patch.setattr(OptimizerStep, "take", poisoned)
        with pytest.raises(FloatingPointError, match=r"weights are broken\. Resume from the last checkpoint"):
            train(CONFIG, root=tmp_path, checkpoint_seconds=0)
    assert contents(train(CONFIG, root=tmp_path).path) == contents(whole.path)


# --- disk ---


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="needs /dev/full, the device that is always full")
@pytest.mark.parametrize("name", ["metrics.jsonl", "evaluations.jsonl", "events.jsonl"])
def test_a_full_disk_stops_the_run_with_the_path_and_the_record_stays_readable(whole, tmp_path, name):
    path = tmp_path / CONFIG.run_id

    def fill(row):
        if row["update"] == 3:
            (path / name).rename(path / f"{name}.kept")
            (path / name).symlink_to("/dev/full")

    with pytest.raises(DiskFullError, match=rf"no space left for .*{name}.*make room"):
        train(CONFIG, root=tmp_path, checkpoint_seconds=0, on_update=fill)
    (path / f"{name}.kept").replace(path / name)  # there is room again, and what was written is as it was
    assert ledger_in(path).counts()["trained"] >= 6
    assert contents(train(CONFIG, root=tmp_path).path) == contents(whole.path)


@pytest.mark.parametrize("where", ["writing", "syncing"])
def test_a_full_disk_under_a_checkpoint_leaves_the_one_before(whole, tmp_path, monkeypatch, where):
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    with pytest.raises(Stop):
        train(CONFIG, root=tmp_path, checkpoint_seconds=0, on_update=stop_at(3))
    path = tmp_path / CONFIG.run_id
    before = (path / CHECKPOINT).read_bytes()

    def full(tensors, target, metadata):
        if where == "writing":
            raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
        save_file(tensors, target, metadata=metadata)

    def full_sync(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("safetensors.torch.save_file", full)
        if where == "syncing":
            patch.setattr(files.os, "fsync", full_sync)
        with pytest.raises(DiskFullError, match=rf"no space left for .*{CHECKPOINT if where == 'writing' else '.*'}"):
            train(CONFIG, root=tmp_path, checkpoint_seconds=0)
    assert (path / CHECKPOINT).read_bytes() == before and not list(path.glob("*.partial"))
    assert contents(train(CONFIG, root=tmp_path).path) == contents(whole.path)


def test_other_errors_of_files_pass_as_they_are(tmp_path):
    with pytest.raises(FileNotFoundError):
        files.write_atomically(tmp_path / "missing" / "file", b"")
    assert checkpoints.TENSOR  # the module that writes through files.replacing


# --- verifiers ---


@pytest.fixture
def faulty(monkeypatch):
    monkeypatch.setitem(TASKS, "faulty", FaultyVerifier)
    return CONFIG.replace(task="faulty", evaluation_prompts=16)


@pytest.mark.filterwarnings("ignore:.* could not be verified")
def test_a_verifier_that_raises_loses_its_groups_and_no_others(tmp_path, faulty):
    record = train(faulty, root=tmp_path)
    ledger = ledger_of(record)
    ledger.check()
    assert set(ledger.drop_reasons()) == {"verifier raised"} and ledger.counts()["trained"] == 12
    assert ledger.counts()["dropped"] == ledger.issued - 12 > 0
    faults = [event for event in events_of(record) if event["kind"] == "verify" and "fault" in event]
    assert {event["ticket"] for event in faults} == set(ledger.reasons)
    # what is dropped depends on no clock, so the record does not either
    assert contents(train(faulty, root=tmp_path / "again").path) == contents(record.path)


def test_evaluation_answers_without_a_verdict_count_as_wrong_and_are_reported(tmp_path, faulty):
    with pytest.warns(UserWarning, match=r"\d of 16 evaluation answers could not be verified(?s:.)*verifier is broken"):
        train(faulty.replace(updates=1), root=tmp_path)


def test_a_verifier_that_hangs_is_killed_and_the_run_goes_on(tmp_path, faulty):
    hangs = {"task_options": {"fault": "hang", "on": "5"}, "evaluation_prompts": 1}
    record = train(faulty.replace(**hangs, verifier_processes=1, verifier_limit=1.0, updates=4), root=tmp_path)
    ledger = ledger_of(record)
    ledger.check()
    assert ledger.drop_reasons() == {"verifier hung": 1} and ledger.counts()["trained"] == 8


def test_a_verifier_that_always_fails_stops_the_run_with_its_traceback(tmp_path, faulty):
    broken = faulty.replace(task_options={"on": "0123456789"}, evaluation_prompts=1)
    with (
        pytest.warns(UserWarning, match="1 of 1 evaluation answers"),
        pytest.raises(RolloutFailure, match=r"9 times in a row (?s:.)*this verifier is broken"),
    ):
        train(broken, root=tmp_path)
    assert ledger_in(tmp_path / broken.run_id).drop_reasons() == {"verifier raised": 9}
    with pytest.raises(RolloutFailure, match=r"9 evaluation answers could not be verified(?s:.)*is broken"):
        train(broken.replace(evaluation_prompts=16), root=tmp_path)
