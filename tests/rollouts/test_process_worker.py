"""A worker in a process of its own: the same groups as in the caller, and every kind of end is reported or mourned."""

import os
import queue
import signal
import subprocess
import sys
import time

import pytest
import torch

from gmc_core import paths
from gmc_core.rollouts.child_process import ChildProcess, dumps, loads
from gmc_core.rollouts.continuous import GroupRequest
from gmc_core.rollouts.engine_spec import EngineSpec
from gmc_core.rollouts.policy import response_log_probs, snapshot
from gmc_core.rollouts.tasks import RunningSums
from gmc_core.rollouts.workers import process
from gmc_core.rollouts.workers.inline import InlineWorker
from gmc_core.rollouts.workers.messages import (
    Failed,
    Generate,
    GroupDone,
    LoadWeights,
    Probe,
    Ready,
    RolloutWorker,
    WeightsLoaded,
)
from gmc_core.rollouts.workers.process import ProcessWorker
from gmc_core.rollouts.workers.weights import SharedMemoryWeights
from tests.models import warm_policy

SPEC = EngineSpec("transformers", str(paths.TINY_QWEN3), environment={"VLLM_A_SETTING": "1"})
TASK = RunningSums(6)
PROMPTS = TASK.sample_prompts(4, torch.Generator().manual_seed(0))


def requests(first=0, *, size=4, tokens=14, temperature=1.0):
    return [
        GroupRequest(first + index, prompt, size, tokens, temperature, seed=first + index)
        for index, prompt in enumerate(PROMPTS)
    ]


def until(worker, kind, count=1):
    """Events up to the `count`-th of that kind."""
    events = []
    while sum(isinstance(event, kind) for event in events) < count:
        events.append(worker.events.get(timeout=120))
        assert kind is Failed or not isinstance(events[-1], Failed), events[-1].reason
    return events


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    shared = SharedMemoryWeights(tmp_path_factory.mktemp("shm"))
    yield shared
    shared.close()


@pytest.fixture(scope="module")
def worker():
    """One child for the tests below, which build upon each other; the last of them kills it."""
    worker = ProcessWorker("w0", SPEC, queue.SimpleQueue())
    yield worker
    worker.close()


def moved(policy):
    """The warm start a step away, as a learner would have it."""
    with torch.no_grad():
        policy.model.get_output_embeddings().weight.mul_(1.01)
    return policy


def probe_of(policy, group):
    logp_GT = log_probs(policy, group)
    kept = group.mask_GT[0]
    return Probe(group.prompt_tokens_L, group.response_GT[0][kept], logp_GT[0][kept], tolerance=1e-5)


@torch.no_grad()
def log_probs(policy, group):
    prompt_1L = group.prompt_tokens_L[None]
    index_G = torch.zeros(group.size, dtype=torch.long)
    return response_log_probs(
        policy.model, prompt_1L, torch.ones_like(prompt_1L, dtype=torch.bool), group.response_GT, index_G
    )


def test_it_generates_what_the_caller_would(worker):
    assert isinstance(worker, RolloutWorker)
    worker.send(Generate(requests()))
    events = until(worker, GroupDone, 4)
    assert isinstance(events[0], Ready) and events[0].seconds > 0
    inline = InlineWorker("inline", SPEC, queue.SimpleQueue())
    inline.send(Generate(requests()))
    while inline.pump():
        pass
    twins = {event.ticket: event for event in until(inline, GroupDone, 4) if isinstance(event, GroupDone)}
    for event in events[1:]:
        if isinstance(event, GroupDone):
            group, twin = event.group, twins[event.ticket].group
            assert group.prompt == twin.prompt and torch.equal(group.response_GT, twin.response_GT)
            torch.testing.assert_close(group.behavior_logp_GT, twin.behavior_logp_GT, atol=1e-5, rtol=0)
            assert event.worker == "w0" and event.finished >= event.started > time.time() - 600


@pytest.mark.skipif(sys.platform != "linux", reason="reads the child's environment from /proc")
def test_variables_are_set_before_anything_is_imported(worker):
    with open(f"/proc/{worker.pid}/environ", "rb") as file:
        variables = file.read().decode().split("\0")
    assert {"OMP_NUM_THREADS=1", "TOKENIZERS_PARALLELISM=false", "VLLM_A_SETTING=1"} <= set(variables)


def test_weights_arrive_in_the_middle_of_a_generation(worker, shared):
    policy = moved(warm_policy())
    long = [GroupRequest(100 + i, PROMPTS[i], 8, 200, 3.0, seed=i) for i in range(4)]  # hot: few ends of sequence
    worker.send(Generate([*requests(10, size=1)[:1]]))
    group = next(event.group for event in until(worker, GroupDone) if isinstance(event, GroupDone))
    worker.send(Generate(long))
    probe = probe_of(policy, group)
    worker.send(LoadWeights(1, shared.publish(1, snapshot(policy.model)), probe))
    loaded = until(worker, WeightsLoaded)[-1]
    assert loaded.version == 1 and 0 <= loaded.gap <= 1e-5
    shared.release(1)
    worker.send(Generate(requests(20)))
    done = [event for event in until(worker, GroupDone, 8) if isinstance(event, GroupDone)]
    assert {event.ticket for event in done} == {20, 21, 22, 23, 100, 101, 102, 103}
    for event in done:
        if event.ticket < 100:
            group = event.group
            assert (group.version_GT[group.mask_GT] == 1).all()
            expected = log_probs(policy, group)[group.mask_GT]
            torch.testing.assert_close(group.behavior_logp_GT[group.mask_GT], expected, atol=1e-5, rtol=0)


def test_a_kill_in_the_middle_of_a_generation_is_reported_at_once_and_can_be_mended(worker, shared):
    worker.send(Generate([GroupRequest(t, PROMPTS[t % 4], 64, 200, 3.0, seed=t) for t in range(200, 232)]))
    worker.send(LoadWeights(2, shared.publish(2, snapshot(warm_policy().model))))
    until(worker, WeightsLoaded)  # behind the generate command, far ahead of its end
    os.kill(worker.pid, signal.SIGKILL)
    failed = until(worker, Failed)[-1]
    assert failed.recoverable and failed.worker == "w0"
    assert "SIGKILL" in failed.reason and str(worker.pid) in failed.reason
    worker.send(Generate(requests(300)))  # no more commands
    worker.close()
    assert worker.events.empty()


def test_a_start_that_fails_says_why(tmp_path):
    worker = ProcessWorker("w1", EngineSpec("transformers", str(tmp_path / "nothing")), queue.SimpleQueue())
    failed = until(worker, Failed)[-1]
    worker.close()
    assert not failed.recoverable
    assert "worker w1 could not start" in failed.reason and "nothing" in failed.reason


def test_a_process_that_ends_before_its_engine_is_built(monkeypatch, tmp_path):
    monkeypatch.setattr(process, "ChildProcess", lambda module, *rest: ChildProcess("no_such_module", *rest))
    worker = ProcessWorker("w2", SPEC, queue.SimpleQueue(), log=tmp_path / "w2.log")
    failed = until(worker, Failed)[-1]
    worker.close()
    assert not failed.recoverable
    assert "exit code 1" in failed.reason and "No module named no_such_module" in failed.reason
    assert "no_such_module" in (tmp_path / "w2.log").read_text()


def test_closing_ends_the_process_without_an_event():
    worker = ProcessWorker("w3", SPEC, queue.SimpleQueue())
    worker.close(timeout=0.0)
    assert worker._child.exit_code is not None and worker.events.empty()
    worker.send(Generate(requests()))


def test_a_worker_that_stopped_to_answer_can_be_killed():
    worker = ProcessWorker("w4", SPEC, queue.SimpleQueue())
    os.kill(worker.pid, signal.SIGSTOP)
    worker.kill()
    failed = until(worker, Failed)[-1]
    worker.close()
    assert failed.recoverable and "before its engine was built" in failed.reason and worker.events.empty()


def gone(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] in "ZX"  # dead, at most not yet buried
    except FileNotFoundError:
        return True


@pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")
def test_a_killed_learner_takes_its_worker_and_its_shared_memory_along():
    learner = subprocess.Popen(
        [sys.executable, "-m", "tests.orphans"], cwd=paths.ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        pid, folder = learner.stdout.readline().split()
        assert not gone(pid) and os.path.isdir(folder)
    finally:
        learner.kill()
    deadline = time.monotonic() + 60  # it takes a fraction of a second; a machine may be busy
    while time.monotonic() < deadline and not (gone(pid) and not os.path.exists(folder)):
        time.sleep(0.05)
    learner.wait()
    assert gone(pid) and not os.path.exists(folder)


def test_tensors_travel_as_bytes():
    values = [
        torch.arange(6.0).view(2, 3).t(),
        torch.tensor(3),
        torch.tensor([True, False]),
        torch.tensor([1.5], dtype=torch.bfloat16),
        torch.empty((0, 4), dtype=torch.long),
        torch.rand(3, requires_grad=True),
    ]
    for value in values:
        (back,) = loads(dumps([value]))
        assert back.dtype == value.dtype and back.shape == value.shape and torch.equal(back, value.detach())
        back.zero_()  # writable, its own memory
    group = loads(dumps(GroupRequest(1, PROMPTS[0], 2, 3, 1.0, 4)))
    assert group == GroupRequest(1, PROMPTS[0], 2, 3, 1.0, 4)
