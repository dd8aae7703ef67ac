"""Who is sent what: the fleet with workers that only write down their commands."""

import queue
import time

import pytest
import torch

from gmc_core.rollouts.continuous import GroupRequest
from gmc_core.rollouts.engine_spec import EngineSpec
from gmc_core.rollouts.tasks import Prompt
from gmc_core.rollouts.trajectories import Group
from gmc_core.rollouts.workers.messages import Abort, Failed, Generate, GroupDone, LoadWeights, Ready, WeightsLoaded
from gmc_core.training import fleet as fleet_module
from gmc_core.training.fleet import Command, Fleet, RolloutFailure
from gmc_core.training.run_config import RunConfig
from gmc_core.training.worker_factory import KINDS, MemoryWeights

WEIGHTS = {"w": torch.zeros(1)}


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
