"""A worker in a Ray actor: the caller's groups, weights by the object store, every end reported, nothing left over.

One Ray for the module; the tests build upon each other's actors, since an actor takes seconds to start.
"""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

pytest.importorskip("ray", reason="Ray is not installed (make live)")

import psutil
import ray

from gmc_core import paths
from gmc_core.rollouts.continuous import GroupRequest
from gmc_core.rollouts.engine_spec import EngineSpec
from gmc_core.rollouts.policy import response_log_probs, snapshot
from gmc_core.rollouts.tasks import RunningSums
from gmc_core.rollouts.workers import ray_runtime
from gmc_core.rollouts.workers.inline import InlineWorker
from gmc_core.rollouts.workers.messages import (
    Abort,
    Busy,
    Failed,
    Generate,
    GroupDone,
    LoadWeights,
    Probe,
    Ready,
    RolloutWorker,
    WeightsLoaded,
)
from gmc_core.rollouts.workers.ray_actor import EngineActor, RayWorker, resources
from gmc_core.rollouts.workers.ray_weights import RayWeights
from gmc_core.training.ledger import Ledger
from gmc_core.training.live_loop import LEDGER
from gmc_core.training.loop import train
from gmc_core.training.run_config import RunConfig
from tests.models import warm_policy

SPEC = EngineSpec("transformers", str(paths.TINY_QWEN3), environment={"GMC_A_SETTING": "1"})
PROMPTS = RunningSums(6).sample_prompts(4, torch.Generator().manual_seed(0))
GROUP_FIELDS = ("response_GT", "mask_GT", "behavior_logp_GT", "version_GT", "finished_G")


RAY_FOLDER = str(Path(ray.__file__).parent)


@contextlib.contextmanager
def lingering(*words, code="import time; time.sleep(600)"):
    """A process that does not end when Ray does; with Ray's folder among its `words` it looks like one of Ray's."""
    with subprocess.Popen([sys.executable, "-c", code, *words]) as process:
        yield process
        process.kill()


@pytest.fixture(scope="module", autouse=True)
def ray_here():
    """Nothing of this Ray outlives `stop_ray`, not even what outlives Ray's own end; another's processes do."""
    with contextlib.ExitStack() as stack:
        other = stack.enter_context(lingering(RAY_FOLDER))
        before = {other.pid} | {p.pid for p in psutil.Process().children(recursive=True)}  # of other tests, too
        assert ray_runtime.start_ray()
        yield
        late = stack.enter_context(lingering(RAY_FOLDER))
        code = f"import time; sys_path = ['{RAY_FOLDER}/thirdparty_files']; time.sleep(600)"  # as a fork server has it
        bystander = stack.enter_context(lingering(code=code))
        below = [p for p in psutil.Process().children(recursive=True) if ray_runtime.is_of_ray(p)]
        assert {other.pid, late.pid} < {p.pid for p in below} and bystander.pid not in {p.pid for p in below}
        ray_runtime.stop_ray()
        assert bystander.poll() is None and other.poll() is None
        ours = [p for p in below if p.pid not in before]
        assert not [p for p in ours if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


@pytest.fixture(scope="module")
def store():
    store = RayWeights()
    yield store
    store.close()


@pytest.fixture(scope="module")
def worker():
    """Takes updates in flight; a test below kills it."""
    worker = RayWorker("w0", SPEC, queue.SimpleQueue())
    yield worker
    worker.close()


@pytest.fixture(scope="module")
def successor():
    """Drained; it takes over from the killed one."""
    worker = RayWorker("w1", SPEC, queue.SimpleQueue(), in_flight_updates=False)
    yield worker
    worker.close()


def requests(first=0, *, size=4, tokens=14):
    return [
        GroupRequest(first + index, prompt, size, tokens, 1.0, seed=first + index)
        for index, prompt in enumerate(PROMPTS)
    ]


def until(worker, kind, count=1):
    """Events up to the `count`-th of that kind."""
    events = []
    while sum(isinstance(event, kind) for event in events) < count:
        events.append(worker.events.get(timeout=120))
        assert kind is Failed or not isinstance(events[-1], Failed), events[-1].reason
    return events


def groups(events):
    return {event.ticket: event.group for event in events if isinstance(event, GroupDone)}


def inline_groups(wanted, in_flight_updates=True):
    inline = InlineWorker("inline", SPEC, queue.SimpleQueue(), in_flight_updates)
    inline.send(Generate(wanted))
    while inline.pump():
        pass
    return groups(until(inline, GroupDone, len(wanted)))


@torch.no_grad()
def log_probs(policy, group):
    prompt_1L = group.prompt_tokens_L[None]
    index_G = torch.zeros(group.size, dtype=torch.long)
    mask_1L = torch.ones_like(prompt_1L, dtype=torch.bool)
    return response_log_probs(policy.model, prompt_1L, mask_1L, group.response_GT, index_G)


def moved(policy, factor=1.01):
    with torch.no_grad():
        policy.model.get_output_embeddings().weight.mul_(factor)
    return policy


def gone(pid, seconds=60):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.05)
    return False


def test_it_generates_what_the_caller_would(worker):
    assert isinstance(worker, RolloutWorker)
    worker.send(Generate(requests()))
    events = until(worker, GroupDone, 4)
    assert isinstance(events[0], Ready) and events[0].seconds > 0
    twins = inline_groups(requests())
    for ticket, group in groups(events).items():
        assert group.prompt == twins[ticket].prompt and torch.equal(group.response_GT, twins[ticket].response_GT)
        torch.testing.assert_close(group.behavior_logp_GT, twins[ticket].behavior_logp_GT, atol=1e-5, rtol=0)
    assert {"OMP_NUM_THREADS": "1", "GMC_A_SETTING": "1"}.items() <= psutil.Process(worker.pid).environ().items()


def test_weights_arrive_in_the_middle_of_a_generation(worker, store):
    policy = moved(warm_policy())
    worker.send(Generate(requests(10, size=1)[:1]))
    (group,) = groups(until(worker, GroupDone)).values()
    logp_T = log_probs(policy, group)[0][group.mask_GT[0]]
    probe = Probe(group.prompt_tokens_L, group.response_GT[0][group.mask_GT[0]], logp_T, tolerance=1e-5)
    worker.send(Generate([GroupRequest(100 + i, PROMPTS[i], 8, 200, 3.0, seed=i) for i in range(4)]))  # hot, so long
    source = store.publish(1, snapshot(policy.model))
    assert store.publish(1, {}) is source  # a version is stored once
    worker.send(LoadWeights(1, source, probe))
    loaded = until(worker, WeightsLoaded)[-1]
    assert loaded.version == 1 and 0 <= loaded.gap <= 1e-5
    store.release(1)
    worker.send(Generate(requests(20)))
    done = groups(until(worker, GroupDone, 8))
    assert set(done) == {20, 21, 22, 23, 100, 101, 102, 103}
    for ticket in (20, 21, 22, 23):
        group, mask_GT = done[ticket], done[ticket].mask_GT
        assert (group.version_GT[mask_GT] == 1).all()
        torch.testing.assert_close(
            group.behavior_logp_GT[mask_GT], log_probs(policy, group)[mask_GT], atol=1e-5, rtol=0
        )


def test_a_kill_in_the_middle_of_a_generation_is_reported_and_its_ticket_generated_by_another(worker, successor):
    short, long = requests(200)[0], GroupRequest(201, PROMPTS[1], 256, 200, 3.0, seed=201)
    worker.send(Generate([short, long]))
    until(worker, GroupDone)  # the short one: the long one is in flight
    os.kill(worker.pid, signal.SIGKILL)
    failed = until(worker, Failed)[-1]
    assert failed.recoverable and failed.worker == "w0"
    assert "while it worked" in failed.reason and str(worker.pid) in failed.reason
    worker.send(Generate(requests(300)))  # no more commands
    worker.close()
    assert worker.events.empty() and gone(worker.pid)
    wanted = [GroupRequest(202, PROMPTS[2], 4, 14, 1.0, seed=202)]
    successor.send(Generate(wanted))
    group, twin = groups(until(successor, GroupDone))[202], inline_groups(wanted)[202]
    assert torch.equal(group.response_GT, twin.response_GT)


def drained(worker, store):
    """(ticket, group) of a fixed sequence of commands, all sent at once."""
    policies = [warm_policy(), moved(warm_policy(), 1.02)]
    worker.send(LoadWeights(1, store.publish(11, snapshot(policies[0].model))))
    worker.send(Generate(requests(400)))
    worker.send(LoadWeights(2, store.publish(12, snapshot(policies[1].model))))
    worker.send(Generate(requests(500)))
    return [(e.ticket, e.group) for e in until(worker, GroupDone, 8) if isinstance(e, GroupDone)]


def test_the_drained_mode_gives_the_same_groups_twice(successor, store):
    once = drained(successor, store)
    assert {ticket for ticket, _ in once[:4]} == {400, 401, 402, 403}
    assert all((group.version_GT[group.mask_GT] == (1 if ticket < 500 else 2)).all() for ticket, group in once)
    other = RayWorker("w2", SPEC, queue.SimpleQueue(), in_flight_updates=False)
    twice = drained(other, store)
    other.close()
    assert gone(other.pid)
    while not other.events.empty():  # its last interval may come behind the last group, and nothing else
        assert isinstance(other.events.get(), Busy)
    assert [ticket for ticket, _ in once] == [ticket for ticket, _ in twice]
    for (_, one), (_, two) in zip(once, twice, strict=True):
        assert all(torch.equal(getattr(one, name), getattr(two, name)) for name in GROUP_FIELDS)


def test_a_start_that_fails_says_why(tmp_path):
    worker = RayWorker("w3", EngineSpec("transformers", str(tmp_path / "nothing")), queue.SimpleQueue())
    failed = until(worker, Failed)[-1]
    worker.close()
    assert not failed.recoverable
    assert "worker w3 could not start" in failed.reason and "nothing" in failed.reason
    assert gone(worker.pid)


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks for a GPU that is not there")
def test_a_worker_that_no_node_has_room_for():
    spec = EngineSpec("vllm", str(paths.TINY_QWEN3), device="cuda", options={"tensor_parallel_size": 2})
    assert resources(spec) == {"num_cpus": 1, "num_gpus": 2}
    worker = RayWorker("w4", spec, queue.SimpleQueue(), placement_seconds=0.5)
    failed = until(worker, Failed)[-1]
    assert not failed.recoverable
    assert "no node had room for worker w4" in failed.reason and "1 CPUs and 2 GPUs" in failed.reason
    patient = RayWorker("w5", spec, queue.SimpleQueue())
    patient.close()  # at once, although it would wait for minutes
    assert patient.events.empty() and patient.pid is None


def test_commands_that_overtake_each_other_are_put_in_order():
    actor = EngineActor()
    for number in (1, 3, 0, 2):
        actor.take(number, Abort((number,)))
    assert [actor._inbox.get_nowait().tickets for _ in range(4)] == [(0,), (1,), (2,), (3,)]


def test_stored_weights_keep_every_dtype_and_are_released(store):
    weights = {
        "bf16": torch.randn(3, 4).bfloat16(),
        "fp32": torch.randn(5, 2).t(),
        "scalar": torch.tensor(2.5),
        "long": torch.arange(3),
        "parameter": torch.nn.Parameter(torch.randn(2)),
    }
    loaded = store.publish(30, weights).load()
    for name, tensor in weights.items():
        assert loaded[name].dtype == tensor.dtype and torch.equal(loaded[name], tensor.detach())
    assert 30 in store.versions
    store.release(30)
    store.release(30)
    assert 30 not in store.versions
    own = RayWeights()
    own.close()
    with pytest.raises(RuntimeError, match="closed"):
        own.publish(0, weights)


@pytest.mark.parametrize("engine", ["transformers", "vllm"])
def test_training_over_an_actor(engine, tmp_path):
    options = {}
    if engine == "vllm":
        if find_spec("vllm") is None:
            pytest.skip("vLLM is not installed (make live)")
        options = {"kv_cache_memory_bytes": 1 << 27}
    config = RunConfig(
        schedule="bounded_staleness", workers="ray", engine=engine, engine_options=options, max_staleness=1, updates=2,
        evaluation_every=2, evaluation_prompts=8, prompts_per_update=2, group_size=4, verifier_processes=0,
    )  # fmt: skip
    record = train(config, root=tmp_path)
    assert [row["staleness_max"] for row in record.metrics] == [0, 1]
    assert abs(record.metrics[0]["log_ratio_min"]) < 1e-3 and abs(record.metrics[0]["log_ratio_max"]) < 1e-3
    ledger = Ledger.from_plain(json.loads((record.path / LEDGER).read_text()))
    ledger.check()
    assert ledger.counts() == {"generating": 0, "verifying": 0, "ready": 0, "trained": 4, "dropped": 0}
    assert ledger.updates == {1: (0, 1), 2: (2, 3)} and ledger.staleness == {0: 8, 1: 8}
