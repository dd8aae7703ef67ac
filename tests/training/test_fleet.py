"""Who is sent what: the fleet with workers that only write down their commands."""

import queue
import time
from typing import ClassVar

import pytest
import torch

from gmc_core.rollouts.continuous import GroupRequest
from gmc_core.rollouts.engine_spec import EngineSpec
from gmc_core.rollouts.tasks import Prompt
from gmc_core.rollouts.trajectories import Group
from gmc_core.rollouts.vllm_transfer import TransferredWeights
from gmc_core.rollouts.workers.messages import (
    Abort,
    Failed,
    Generate,
    GroupDone,
    LoadWeights,
    Probe,
    Ready,
    WeightsLoaded,
)
from gmc_core.training import fleet as fleet_module
from gmc_core.training.fleet import Command, Fleet, RolloutFailure
from gmc_core.training.run_config import RunConfig
from gmc_core.training.weight_transfer import make_fleet
from gmc_core.training.worker_factory import KINDS, MemoryWeights

WEIGHTS = {"w": torch.zeros(1)}
PROBE = Probe(torch.ones(1, dtype=torch.long), torch.ones(1, dtype=torch.long), torch.zeros(1), 0.1)


class Scribe:
    """A worker that does nothing."""

    made = ()

    def __init__(self, name, spec, events, in_flight_updates):
        self.name, self.spec, self.events = name, spec, events
        self.sent, self.closed = [], False
        Scribe.made += (self,)

    def send(self, command):
        self.sent.append(command)

    def close(self, timeout=5.0):
        self.closed = True

    @property
    def said(self):
        """Commands in short: ("load", version), ("generate", tickets), ("abort", tickets)."""
        short = {
            LoadWeights: lambda c: ("load", c.version),
            Generate: lambda c: ("generate", tuple(request.ticket for request in c.requests)),
            Abort: lambda c: ("abort", tuple(c.tickets)),
        }
        return [short[type(command)](command) for command in self.sent]


def request(ticket):
    return GroupRequest(ticket, Prompt("1+1=", "2"), group_size=1, max_new_tokens=4, temperature=1.0, seed=ticket)


def group():
    one = torch.ones((1, 1), dtype=torch.long)
    return Group(Prompt("1+1=", "2"), one[0], one, one.bool(), -one.float(), one * 0, torch.ones(1, dtype=torch.bool))


@pytest.fixture
def make(monkeypatch):
    monkeypatch.setitem(KINDS, "process", (f"{__name__}:Scribe", "gmc_core.training.worker_factory:MemoryWeights"))
    monkeypatch.setattr(Scribe, "made", ())
    fleets = []

    def make(workers=2, **options):
        config = RunConfig(schedule="bounded_staleness", workers="process", worker_count=workers, **options)
        fleets.append(Fleet(config, EngineSpec("transformers", "nowhere"), request, queue.SimpleQueue()))
        return fleets[-1], *Scribe.made[-workers:]

    yield make
    for fleet in fleets:
        fleet.close()


def done(fleet, worker, ticket):
    return fleet.accept(GroupDone(worker.name, ticket, group(), 0.0, 0.0))


def published(fleet):
    publisher = fleet._workshop.publisher
    assert isinstance(publisher, MemoryWeights)
    return publisher.versions


def test_nobody_starts_before_it_is_ready_and_then_with_the_newest_weights(make):
    fleet, first, second = make()
    fleet.publish(0, WEIGHTS, None)
    assert fleet.generate([0, 1, 2]) == [0, 1, 2] and first.said == second.said == []
    assert fleet.ready(Ready(second.name, 1.0)) == [0, 1, 2]
    assert second.said == [("load", 0), ("generate", (0, 1, 2))] and first.said == []
    fleet.publish(1, WEIGHTS, None)
    assert fleet.ready(Ready(first.name, 1.0)) == []
    assert first.said == [("load", 1)] and second.said[-1] == ("load", 1)


def test_who_has_least_to_do_is_asked(make):
    fleet, first, second = make()
    fleet.publish(0, WEIGHTS, None)
    fleet.ready(Ready(first.name, 1.0))
    fleet.generate([0, 1])
    fleet.ready(Ready(second.name, 1.0))
    assert fleet.generate([2, 3, 4, 5]) == []
    assert second.said == [("load", 0), ("generate", (2, 3, 5))] and first.said[-1] == ("generate", (4,))


def test_a_group_counts_once_and_only_from_who_was_asked(make):
    fleet, first, second = make()
    fleet.publish(0, WEIGHTS, None)
    for worker in (first, second):
        fleet.ready(Ready(worker.name, 1.0))
    fleet.generate([0, 1])
    assert not done(fleet, second, 0)
    assert done(fleet, first, 0) and not done(fleet, first, 0)
    fleet.abort([1, 9])
    assert second.said[-1] == ("abort", (1,)) and not done(fleet, second, 1)


def test_weights_are_kept_for_as_long_as_somebody_may_load_them(make):
    fleet, first, second = make()
    for worker in (first, second):
        fleet.ready(Ready(worker.name, 1.0))
    for version in (0, 1, 2):
        fleet.publish(version, WEIGHTS, None)
    assert published(fleet) == (0, 1, 2)
    fleet.loaded(WeightsLoaded(first.name, 2, 0.0, 0.0, None))
    assert published(fleet) == (0, 1, 2)
    fleet.loaded(WeightsLoaded(second.name, 1, 0.0, 0.0, None))
    assert published(fleet) == (2,)


def test_the_groups_of_a_lost_worker_go_back_and_its_successor_gets_the_newest_weights(make):
    fleet, first, second = make()
    fleet.publish(0, WEIGHTS, None)
    for worker in (first, second):
        fleet.ready(Ready(worker.name, 1.0))
    fleet.generate([0, 1, 2])
    fleet.publish(1, WEIGHTS, None)
    assert fleet.replace(Failed(first.name, "killed", True)) == [0, 2]
    assert first.closed and fleet.restarts == 1
    fleet.generate([0, 2])
    assert second.said[-1] == ("generate", (0, 2))
    third = Scribe.made[-1]
    assert third.name == first.name and third.said == []
    fleet.ready(Ready(third.name, 1.0))
    assert third.said == [("load", 1)]


def test_losses_are_bounded_between_two_updates_and_faults_stop_at_once(make):
    fleet, first, _ = make(max_restarts=1)
    fleet.replace(Failed(first.name, "killed", True))
    fleet.updated()
    fleet.replace(Failed(first.name, "killed", True))
    with pytest.raises(RolloutFailure, match="loss number 2 since the last update, and max_restarts is 1"):
        fleet.replace(Failed(first.name, "killed", True))
    with pytest.raises(RolloutFailure, match="NaN"):
        fleet.replace(Failed(first.name, "NaN", False))


def test_in_the_deterministic_mode_a_new_worker_is_told_the_same_in_the_same_order(make):
    fleet, first = make(workers=1)
    fleet.publish(0, WEIGHTS, None)
    for tickets in ((0, 1), (2, 3)):
        fleet.generate(tickets)
    fleet.publish(1, WEIGHTS, None)
    fleet.generate([4, 5])
    fleet.publish(2, WEIGHTS, None)
    for ticket in (0, 1, 2):
        assert done(fleet, first, ticket)
    fleet.loaded(WeightsLoaded(first.name, 1, 0.0, 0.0, None))
    assert fleet.commands == (Command(0, (2, 3)), Command(1, (4, 5))) and published(fleet) == (0, 1, 2)
    assert fleet.replace(Failed(first.name, "killed", True)) == [3, 4, 5]
    # 2 is decoded again beside 3, as the first time; it is not taken a second time
    second = Scribe.made[-1]
    assert second.said == [("load", 0), ("generate", (2, 3)), ("load", 1), ("generate", (4, 5)), ("load", 2)]
    assert not done(fleet, second, 2) and done(fleet, second, 3)


def test_who_has_work_and_gives_no_sign_for_long_hangs(make, monkeypatch):
    fleet, first, second = make()
    now = [time.monotonic()]
    monkeypatch.setattr(fleet_module.time, "monotonic", lambda: now[0])
    fleet.publish(0, WEIGHTS, None)
    for worker in (first, second):
        fleet.events.put(Ready(worker.name, 1.0))
        fleet.ready(fleet.pending())
    now[0] += 100.0  # idle for long is no hanging
    fleet.generate([0, 1])
    assert fleet.silent([0, 1]) == []
    now[0] += fleet_module.SILENT_SECONDS + 1.0
    fleet.events.put(WeightsLoaded(second.name, 0, 0.0, 0.0, None))
    fleet.pending()
    assert fleet.silent([0, 1]) == [first.name] and fleet.silent([1]) == []
    fleet.abort([0])
    fleet.generate([2])  # given up and asked for more, it has still said nothing
    assert fleet.silent([2]) == [first.name]


def test_a_fleet_that_cannot_be_made_ends_the_workers_it_has(make, monkeypatch):
    original = Scribe.__init__

    def only_one(self, *arguments, **options):
        if Scribe.made:
            raise OSError("no more processes")
        original(self, *arguments, **options)

    monkeypatch.setattr(Scribe, "__init__", only_one)
    with pytest.raises(OSError, match="no more processes"):
        make()
    assert Scribe.made[0].closed


# --- weights by vLLM's transfer, with a sender that only delivers messages ---


class Listened(queue.SimpleQueue):
    listener = None

    def put(self, event, block=True, timeout=None):
        super().put(event)
        self.listener(event)


class Sender:
    """What `WeightSender` does: a message to every engine, then the answers of all."""

    def __init__(self, model, backend, engines, workers_per_engine):
        assert (model, workers_per_engine) == ("the model", 2)
        self.engines = engines
        self._round([TransferredWeights(connect={"rank_offset": 1 + index}) for index in range(len(engines))], 0)

    def send(self, version):
        self._round([TransferredWeights(updates=({"names": ["w"]},))] * len(self.engines), version)

    def _round(self, messages, version):
        futures = [engine(message, version) for engine, message in zip(self.engines, messages, strict=True)]
        for future in futures:
            future.result(0.1)

    def close(self):
        self.engines = None


class Answering(Scribe):
    """It answers `LoadWeights`, with what `answers` has for its name in place of a success."""

    answers: ClassVar[dict] = {}

    def send(self, command):
        super().send(command)
        if isinstance(command, LoadWeights):
            success = WeightsLoaded(self.name, command.version, 0.0, 0.0, None)
            answer = Answering.answers.pop(self.name, success)
            if answer is not None:
                self.events.put(answer)


@pytest.fixture
def transferring(monkeypatch):
    monkeypatch.setitem(KINDS, "process", (f"{__name__}:Answering", "gmc_core.training.worker_factory:MemoryWeights"))
    monkeypatch.setattr("gmc_core.rollouts.vllm_transfer.WeightSender", Sender)
    monkeypatch.setattr(Scribe, "made", ())
    monkeypatch.setattr(Answering, "answers", {})

    def make(backend="ipc"):
        options = {"weight_transfer": backend, "tensor_parallel_size": 2}
        config = RunConfig(
            schedule="bounded_staleness", workers="process", worker_count=2, engine="vllm", in_flight_updates=True,
            engine_options=options,
        )  # fmt: skip
        fleet = make_fleet(config, EngineSpec("vllm", "nowhere", options=options), request, Listened(), "the model")
        return fleet, *Scribe.made[-2:]

    return make


def test_a_transfer_waits_for_all_engines_and_sends_each_update_once(transferring):
    fleet, first, second = transferring()
    fleet.publish(0, WEIGHTS, PROBE)
    assert fleet.generate([0, 1]) == [0, 1]
    assert fleet.ready(Ready(first.name, 1.0)) == [] and first.said == []
    assert fleet.ready(Ready(second.name, 1.0)) == [0, 1]
    assert first.said == [("load", 0), ("generate", (0,))] and second.said == [("load", 0), ("generate", (1,))]
    assert [first.sent[0].source.connect, second.sent[0].source.connect] == [{"rank_offset": 1}, {"rank_offset": 2}]
    fleet.publish(1, WEIGHTS, PROBE)
    assert first.said[-1] == second.said[-1] == ("load", 1)
    assert [command.probe for command in first.sent if isinstance(command, LoadWeights)] == [None, PROBE]


def test_after_a_loss_in_the_middle_of_a_round_all_engines_are_connected_again(transferring):
    fleet, first, second = transferring()
    fleet.publish(0, WEIGHTS, None)
    for worker in (first, second):
        fleet.ready(Ready(worker.name, 1.0))
    fleet.generate([0, 1])
    failed = Failed(second.name, "killed", True)
    Answering.answers[second.name] = failed
    fleet.publish(1, WEIGHTS, None)  # no exception: the loss is an event
    assert fleet.generate([2]) == [2]
    assert fleet.replace(failed) == [1]
    third = Scribe.made[-1]
    assert fleet.generate([1]) == [1]
    assert sorted(fleet.ready(Ready(third.name, 1.0))) == [1, 2]
    # it is connected with the version that it has from its files and then brought to the newest, like the other
    assert third.said == [("load", 0), ("load", 1), ("generate", (2,))]
    assert first.said[-4:] == [("load", 1), ("load", 1), ("load", 1), ("generate", (1,))]
    fleet.close()


def test_an_engine_that_does_not_answer_and_a_lost_member_of_an_nccl_group_stop_the_run(transferring):
    fleet, first, second = transferring("nccl")
    for worker in (first, second):
        fleet.ready(Ready(worker.name, 1.0))
    Answering.answers[first.name] = None
    with pytest.raises(RolloutFailure):
        fleet.publish(1, WEIGHTS, None)
    with pytest.raises(RolloutFailure, match="killed\nThe engines form a group of NCCL"):
        fleet.replace(Failed(second.name, "killed", True))
    fleet.close()
