"""The worker's server: order, coalescing, accounting of time, and no broken group passed on."""

import queue
from dataclasses import dataclass, replace
from itertools import count, pairwise

import pytest
import torch

from gmc_core.rollouts.continuous import ContinuousEngine, EngineLost, GroupRequest
from gmc_core.rollouts.engine_spec import EngineSpec
from gmc_core.rollouts.tasks import Prompt
from gmc_core.rollouts.workers.inline import InlineWorker
from gmc_core.rollouts.workers.messages import (
    Abort,
    Busy,
    Close,
    Failed,
    Generate,
    GroupDone,
    LoadWeights,
    Probe,
    Ready,
    RolloutWorker,
    WeightsLoaded,
)
from gmc_core.rollouts.workers.server import EngineServer
from tests.scripted_engine import ScriptedEngine


@dataclass(frozen=True)
class Given:
    """A `WeightSource` that notes that it was read."""

    read: list
    version: int

    def load(self):
        self.read.append(self.version)
        return {}


def request(ticket, tokens=2, size=3):
    return GroupRequest(ticket, Prompt(f"{ticket}=", ""), size, tokens, 1.0, seed=ticket)


def load(version, read=None, probe=None):
    return LoadWeights(version, Given([] if read is None else read, version), probe)


def server_of(engine=None, seconds=1 / 64, **options):
    """`seconds` pass between two looks at the clock."""
    ticks = count()
    return EngineServer(engine or ScriptedEngine(), "w0", clock=lambda: next(ticks) * seconds, **options)


def run(server, *commands):
    for command in commands:
        server.take(command)
    events = []
    while not server.idle:
        events += server.advance()
    return events


def kinds(events):
    return [type(event).__name__ for event in events]


def test_groups_come_back_with_their_times():
    server = server_of()
    events = run(server, Generate([request(0, 2), request(1, 4)]))
    assert kinds(events) == ["GroupDone", "GroupDone", "Busy"]
    first, second, busy = events
    assert (first.worker, first.ticket, second.ticket) == ("w0", 0, 1)
    assert first.group.prompt == Prompt("0=", "") and first.group.reward_G is None
    assert busy.tokens == 2 * 3 + 4 * 3 and busy.version == 0
    assert busy.started == first.started == second.started < first.finished < second.finished == busy.finished
    assert server.idle and server.advance() == []


def test_in_flight_updates_are_taken_between_two_steps_and_groups_go_on():
    server, engine = (made := server_of()), made.engine
    server.take(Generate([request(0, 6)]))
    server.advance()
    server.take(load(1))
    events = run(server)
    assert kinds(events) == ["Busy", "WeightsLoaded", "GroupDone", "Busy"]
    assert [event.version for event in events if isinstance(event, Busy)] == [0, 1]
    assert events[2].group.version_GT[0].tolist() == [0] + [1] * 5
    assert engine.log[:4] == [("add", 0), ("step", (0,)), ("load", 1), ("step", (0,))]


def test_when_updates_pile_up_only_the_newest_is_loaded():
    read = []
    server = server_of()
    events = run(server, load(1, read), Generate([request(0)]), load(2, read), load(3, read), Generate([request(1)]))
    assert read == [3]
    assert [event.version for event in events if isinstance(event, WeightsLoaded)] == [3]
    assert {event.ticket for event in events if isinstance(event, GroupDone)} == {0, 1}


def test_drained_keeps_the_order_of_the_commands():
    read, engine = [], ScriptedEngine()
    server = server_of(engine, in_flight_updates=False)
    commands = [Generate([request(0, 3), request(1, 1)]), load(1, read), load(2, read), Generate([request(2, 1)])]
    events = run(server, *commands, Generate([request(3, 1)]))
    assert read == [1, 2]
    assert engine.log == [
        ("add", 0),
        ("add", 1),
        ("step", (0, 1)),
        ("step", (0,)),
        ("step", (0,)),
        ("load", 1),
        ("load", 2),
        ("add", 2),
        ("step", (2,)),
        ("add", 3),  # never beside ticket 2, whenever the command came
        ("step", (3,)),
    ]
    versions = {event.ticket: event.group.version_GT.unique().tolist() for event in events if hasattr(event, "group")}
    assert versions == {0: [0], 1: [0], 2: [2], 3: [2]}


def test_drained_is_the_same_however_commands_arrive():
    def tickets(piecemeal):
        server = server_of(in_flight_updates=False)
        commands = [Generate([request(0, 3), request(1, 2)]), load(1), Generate([request(2, 2)]), load(2)]
        if not piecemeal:
            return run(server, *commands), server.engine.log
        events = []
        for command in commands:
            server.take(command)
            events += server.advance()
        return events + run(server), server.engine.log

    (events, log), (later, same) = tickets(False), tickets(True)
    assert log == same and kinds(events) == kinds(later)


def test_abort_reaches_what_runs_and_what_waits():
    engine = ScriptedEngine()
    server = server_of(engine, in_flight_updates=False)
    server.take(Generate([request(0, 50), request(1, 3)]))
    server.take(Generate([request(2, 50), request(3, 1)]))
    server.advance()
    server.take(Abort([0, 2, 99]))
    events = run(server)
    assert [event.ticket for event in events if isinstance(event, GroupDone)] == [1, 3]
    assert ("abort", (0,)) in engine.log and ("add", 2) not in engine.log
    server.take(Generate([request(4, 50)]))
    server.advance()
    server.take(Abort([4]))
    assert not server.idle  # the time up to here is still to be told
    assert kinds(run(server)) == ["Busy"]


def test_long_work_is_reported_in_pieces():
    events = run(server_of(seconds=1.0), Generate([request(0, 20)]))
    busy = [event for event in events if isinstance(event, Busy)]
    assert len(busy) > 2 and sum(event.tokens for event in busy) == 60
    assert all(late.started > early.finished for early, late in pairwise(busy))


def test_close_forgets_everything():
    server = server_of()
    server.take(Generate([request(0)]))
    server.advance()
    server.take(Close())
    assert server.closed and server.engine.closed and server.idle
    server.take(Generate([request(1)]))
    assert server.advance() == []


def test_the_probe_is_compared_after_an_update():
    probe = Probe(torch.tensor([1]), torch.tensor([2, 3]), torch.tensor([-0.5, -0.5001]), tolerance=1e-3)
    (event,) = run(server_of(), load(1, probe=probe))
    assert event.gap == pytest.approx(1e-4, rel=1e-2)
    for wrong in (torch.tensor([-0.5, -0.6]), torch.tensor([-0.5, float("nan")]), torch.tensor([-0.5])):
        server = server_of()
        (failed,) = run(server, load(7, probe=replace(probe, logp_T=wrong)))
        assert isinstance(failed, Failed) and not failed.recoverable and server.closed
        assert "w0" in failed.reason and "policy version 7" in failed.reason


# --- an engine that returns what cannot be right ---


def nan(group, request):
    group.behavior_logp_GT[1, 0] = float("nan")
    return group


def infinite(group, request):
    group.behavior_logp_GT[0, 1] = -float("inf")
    return group


def no_log_prob(group, request):
    group.behavior_logp_GT[0, 0] = 0.3
    return group


def future(group, request):
    group.version_GT[0, 1] = 4
    return group


def older(group, request):
    group.version_GT[:] = 1
    return group


def falling(group, request):
    group.version_GT[0, 0] = 3
    group.version_GT[0, 1] = 2
    return group


def torn(group, request):
    names = ("response_GT", "mask_GT", "behavior_logp_GT", "version_GT", "finished_G")
    return replace(group, **{name: getattr(group, name)[:-1] for name in names})


def mixed(group, request):
    return replace(group, prompt=Prompt("another", ""))


def empty(group, request):
    group.mask_GT[2] = False
    return group


def gap(group, request):
    group.mask_GT[0, 0] = False
    return group


FAULTS = [
    (nan, ["1 of 6 log-probs", "nan", "checkpoint"]),
    (infinite, ["1 of 6 log-probs", "-inf"]),
    (no_log_prob, ["1 of 6 log-probs", "0.3"]),
    (future, ["policy versions [2, 3, 4]", "[2, 3]", "stamps versions"]),
    (older, ["policy versions [1]", "wrong policy"]),
    (falling, ["falls along a rollout"]),
    (torn, ["torn", "2 rollouts instead of 3"]),
    (mixed, ["'another' instead of '5='"]),
    (empty, ["tokens", "[2, 2, 0]"]),
    (gap, ["gaps"]),
]


@pytest.mark.parametrize(("spoil", "says"), FAULTS, ids=[spoil.__name__ for spoil, _ in FAULTS])
def test_a_broken_group_stops_the_run(spoil, says):
    """Versions 1 and 2 are loaded before ticket 5 starts, 3 while it is generated."""
    server = server_of(ScriptedEngine(spoil))
    run(server, load(1))
    run(server, load(2))
    server.take(Generate([request(5)]))
    server.advance()
    server.take(load(3))
    failed = run(server)[-1]
    assert isinstance(failed, Failed) and not failed.recoverable
    for words in ("worker w0", "ticket 5", *says):
        assert words in failed.reason
    assert server.closed and server.engine.closed


def test_what_is_right_under_two_versions_passes():
    server = server_of()
    server.take(Generate([request(5)]))
    server.advance()
    server.take(load(3))
    assert "GroupDone" in kinds(run(server))


class Returns(ScriptedEngine):
    """Returns tickets that nobody asked for, or asked for once."""

    def __init__(self, extra):
        super().__init__()
        self.extra = extra

    def step(self):
        done = super().step()
        return done + [(ticket, self.group(request(ticket), [0, 0])) for ticket in self.extra if done]


@pytest.mark.parametrize("ticket", [8, 0], ids=["unknown", "twice"])
def test_a_ticket_that_nobody_asked_for_stops_the_run(ticket):
    *_, failed = run(server_of(Returns([ticket])), Generate([request(0)]))
    assert isinstance(failed, Failed) and not failed.recoverable
    assert f"ticket {ticket}" in failed.reason and "nobody asked for" in failed.reason and "w0" in failed.reason


class Forgets(ScriptedEngine):
    def step(self):
        done = super().step()
        self.running.pop(1, None)
        return done


def test_a_group_that_the_engine_loses_stops_the_run():
    *_, failed = run(server_of(Forgets()), Generate([request(0), request(1)]))
    assert not failed.recoverable and "ticket 1" in failed.reason and "waited for for ever" in failed.reason


class Raises(ScriptedEngine):
    def __init__(self, error):
        super().__init__()
        self.error = error

    def step(self):
        raise self.error


def test_an_exception_of_the_engine_is_told_and_a_lost_engine_can_be_replaced():
    (failed,) = run(server_of(Raises(ZeroDivisionError("of nothing"))), Generate([request(0)]))
    assert not failed.recoverable and "ZeroDivisionError: of nothing" in failed.reason and "in step" in failed.reason
    (failed,) = run(server_of(Raises(EngineLost("its core died"))), Generate([request(0)]))
    assert failed.recoverable and "its core died" in failed.reason


class Deaf(ScriptedEngine):
    def update_weights(self, weights, policy_version):
        pass


def test_an_update_that_is_not_taken_stops_the_run():
    (failed,) = run(server_of(Deaf()), load(1))
    assert not failed.recoverable and "policy version 0 right after version 1" in failed.reason


def test_versions_only_grow():
    server = server_of()
    run(server, load(4))
    (again,) = run(server, load(4))  # a source sent twice is no fault
    assert again.version == 4
    (failed,) = run(server, load(3))
    assert not failed.recoverable and "version 3 after 4" in failed.reason


def test_a_request_that_the_engine_refuses_is_told():
    *_, failed = run(server_of(), Generate([request(0)]), Generate([request(0)]))
    assert not failed.recoverable and "ticket 0 is in flight" in failed.reason


# --- the worker in the caller ---


def drain(worker):
    events = []
    while worker.pump():
        pass
    while not worker.events.empty():
        events.append(worker.events.get())
    return events


def test_an_inline_worker_does_its_work_when_pumped(monkeypatch):
    def build(spec):
        torch.set_num_threads(spec.threads)
        return ScriptedEngine()

    monkeypatch.setattr(EngineSpec, "build", build)
    threads = torch.get_num_threads()
    worker = InlineWorker("w1", EngineSpec("transformers", "scripted", threads=threads + 1), queue.SimpleQueue())
    assert isinstance(worker, RolloutWorker) and isinstance(ScriptedEngine(), ContinuousEngine)
    worker.send(Generate([request(0)]))
    assert worker.events.empty()
    assert worker.pump() and isinstance(worker.events.get(), Ready)
    assert torch.get_num_threads() == threads
    assert worker.pump() and isinstance(worker.events.get(), GroupDone)
    assert kinds(drain(worker)) == ["Busy"]
    worker.send(load(1))
    assert kinds(drain(worker)) == ["WeightsLoaded"]
    worker.send(Close())
    worker.send(Generate([request(1)]))
    assert not worker.pump()


def test_an_inline_worker_that_cannot_start_says_why():
    worker = InlineWorker("w1", EngineSpec("transformers", "./no/such/model"), queue.SimpleQueue())
    assert worker.pump() and not worker.pump()
    failed = worker.events.get()
    assert not failed.recoverable and "w1" in failed.reason and "no/such/model" in failed.reason
