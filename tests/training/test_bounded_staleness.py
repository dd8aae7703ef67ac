"""The live schedule under every order of events that hypothesis can think of."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gmc_core.training.bounded_staleness import BoundedStaleness
from gmc_core.training.ledger import DROPPED, GENERATING, READY, TRAINED, VERIFYING, LedgerError


def schedule(k=1, P=2, updates=20, **options):
    return BoundedStaleness(k, groups_per_update=P, updates=updates, **options)


def arrive(s, *tickets, version=None):
    """These groups are generated at `version` (default: their bound) and verified."""
    for ticket in tickets:
        assert s.generated(ticket, [s.bound(ticket) if version is None else version])
        assert s.verified(ticket)


def test_k_0_is_synchronous():
    s = schedule(k=0, P=3)
    for update in range(4):
        tickets = s.issue(0.0)
        assert tickets == [3 * update, 3 * update + 1, 3 * update + 2] and s.issue(0.0) == []
        arrive(s, *tickets[:2])
        assert s.next_batch() is None
        arrive(s, tickets[2])
        assert s.next_batch() == tuple(tickets)
        assert s.train(tickets) == []
    assert s.ledger.staleness == {0: 12}


def test_oldest_first_and_whole():
    s = schedule(k=2, P=2)
    assert s.issue(0.0) == [0, 1, 2, 3, 4, 5]
    arrive(s, 5, 3, 0)
    assert s.next_batch() == (0, 3)
    s.train((0, 3))
    assert s.issue(0.0) == [6, 7]
    arrive(s, 6, 1)
    assert s.next_batch() == (1, 5)  # of version 0, before ticket 6 of version 1


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize(("k", "size", "updates"), [(3, 4, 12), (7, 4, 22), (5, 4, 21), (18, 4, 40)])
def test_several_updates_learn_from_what_one_policy_sampled(k, size, updates, in_order):
    s, ages = schedule(k=k, P=2, updates=updates, in_order=in_order, updates_per_batch=size), []
    while s.version < updates:
        tickets = s.issue(0.0)
        assert not tickets or s.version % size == 0
        arrive(s, *tickets)
        batch = s.next_batch()
        bounds = {s.bound(ticket) for ticket in batch}
        ages.append(s.version - bounds.pop())
        assert not bounds, "one policy for all groups of an update"
        s.train(batch)
    assert ages[: k + 1] == list(range(k + 1)), "the first policy until the queue has turned"
    assert set(ages[k + 1 + size :]) <= set(range(k + 1 - size, k + 1))
    assert s.ledger.counts()["trained"] == 2 * updates and s.ledger.counts()["dropped"] == 0


def test_a_batch_of_several_updates_makes_up_for_what_was_dropped():
    s = schedule(k=3, P=1, updates=8, updates_per_batch=4, in_order=True)
    assert s.issue(0.0) == [0, 1, 2, 3]
    arrive(s, 0, 1, 2)
    s.drop(3, "verifier error")
    for ticket in (0, 1, 2):
        assert s.next_batch() == (ticket,)
        s.train((ticket,))
    assert s.issue(0.0) == [4], "the learner has nothing left: one group more, of the policy as it is now"
    arrive(s, 4)
    s.train((4,))
    assert s.issue(0.0) == [5, 6, 7, 8]


def test_a_batch_that_would_grow_too_old_is_refused():
    with pytest.raises(ValueError, match="updates_per_batch=4 with max_staleness=2"):
        schedule(k=2, updates_per_batch=4)


def test_wait_does_not_overtake_what_would_then_be_too_old():
    s = schedule(k=2, P=1)
    s.issue(0.0)
    arrive(s, 2)
    assert s.next_batch() == (2,)
    s.train((2,))
    s.issue(0.0)
    arrive(s, 3)
    # 0 and 1, of version 0, must be taken by updates 2 and 3: another group now would leave room for one only
    assert s.next_batch() is None
    arrive(s, 1)
    assert s.next_batch() == (1,)
    s.train((1,))
    s.issue(0.0)
    arrive(s, 4)
    assert s.next_batch() is None
    arrive(s, 0)
    assert s.next_batch() == (0,)


def test_drop_goes_on_and_drops_what_is_late():
    s = schedule(k=1, P=2, when_exceeded="drop")
    s.issue(0.0)
    arrive(s, 2, 3)
    assert s.train(s.next_batch()) == []
    assert s.issue(0.0) == [4, 5]
    arrive(s, 4, 5)
    assert s.generated(1, [0])  # there, but not verified
    assert s.train(s.next_batch()) == [0]  # 0 is to be aborted, 1 is only forgotten
    assert s.ledger.drop_reasons() == {"stale": 2}
    assert s.issue(0.0) == [6, 7, 8, 9]
    assert not s.generated(0, [0]) and not s.verified(1)  # it raced the abort


def test_a_straggler_that_times_out_is_replaced():
    s = schedule(k=0, P=2, group_timeout=10.0)
    s.issue(100.0)
    arrive(s, 0)
    assert s.next_expiry() == 110.0 and s.expire(110.0) == []
    assert s.expire(110.5) == [1]
    assert s.issue(110.5) == [2] and s.ledger.drop_reasons() == {"timeout": 1}
    arrive(s, 2)
    assert s.next_batch() == (0, 2)


def test_time_does_not_run_before_a_worker_is_there():
    s = schedule(k=0, P=2, group_timeout=10.0)
    s.issue(0.0)
    s.hold([0, 1])
    assert s.expire(1000.0) == [] and s.next_expiry() == float("inf")
    s.begin([0, 1], 1000.0)
    assert s.expire(1009.0) == [] and s.expire(1011.0) == [0, 1]


def test_over_provision_lets_a_step_go_without_its_stragglers():
    s = schedule(k=0, P=4, over_provision=0.25)
    assert s.issue(0.0) == [0, 1, 2, 3, 4]
    arrive(s, 4, 0, 2, 3)
    assert s.next_batch() == (0, 2, 3, 4)
    assert s.train((0, 2, 3, 4)) == [1]
    assert s.issue(0.0) == [5, 6, 7, 8, 9]


def test_nothing_is_issued_that_the_run_cannot_use():
    s = schedule(k=3, P=2, updates=2)
    assert s.issue(0.0) == [0, 1, 2, 3]
    arrive(s, 0, 1, 2, 3)
    s.train(s.next_batch())
    assert s.issue(0.0) == []
    s.train(s.next_batch())
    assert s.issue(0.0) == [] and s.ledger.counts()[TRAINED] == 4 and s.ledger.in_flight == 0


def test_surplus_is_dropped_at_the_end():
    s = schedule(k=1, P=2, updates=1, over_provision=0.5)
    assert s.issue(0.0) == [0, 1, 2]
    arrive(s, 1, 2)
    assert s.train(s.next_batch()) == [0]
    assert s.ledger.drop_reasons() == {"surplus": 1}


def test_in_order_takes_tickets_as_they_were_issued():
    s = schedule(k=1, P=2, in_order=True)
    s.issue(0.0)
    arrive(s, 2, 3, 1)
    assert s.next_batch() is None
    arrive(s, 0)
    assert s.next_batch() == (0, 1)


def test_in_order_makes_up_for_a_drop_only_when_time_cannot_matter():
    s = schedule(k=0, P=2, in_order=True)
    s.issue(0.0)
    s.generated(0, [0])
    s.drop(0, "verifier")
    assert s.issue(0.0) == []  # 1 is on its way: whether it fails as well decides how many are issued together
    arrive(s, 1)
    assert s.issue(0.0) == [2] and s.issue(0.0) == []
    arrive(s, 2)
    assert s.next_batch() == (1, 2)


def test_a_version_that_cannot_be_is_refused():
    s = schedule()
    s.issue(0.0)
    for lowest in ([1], [-1], []):
        with pytest.raises(LedgerError, match="ticket 0 was issued at version 0 and the learner is at 0"):
            s.generated(0, lowest)
    arrive(s, 0)
    with pytest.raises(LedgerError, match="ticket 0, which is ready"):
        s.generated(0, [0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": -1}, "max_staleness=-1"),
        ({"P": 0}, "groups_per_update=0"),
        ({"when_exceeded": "stop"}, "wait, drop"),
        ({"group_timeout": 0.0}, "above 0"),
        ({"over_provision": float("nan")}, "a fraction"),
        ({"in_order": True, "group_timeout": 1.0}, "follow a clock"),
    ],
)
def test_bad_options_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        schedule(**change)


class Simulation:
    """A run in which `draw` decides what happens next; the promises of the schedule are checked at every step."""

    def __init__(self, draw):
        self.draw = draw
        k, P, updates = draw(st.integers(0, 4)), draw(st.integers(1, 3)), draw(st.integers(1, 8))
        options = {"when_exceeded": draw(st.sampled_from(["wait", "drop"]))}
        options["updates_per_batch"] = draw(st.integers(1, k + 1))
        if draw(st.booleans()):
            options["in_order"] = True
        else:
            options["over_provision"] = draw(st.sampled_from([0.0, 0.3, 1.0]))
            options["group_timeout"] = draw(st.sampled_from([None, 3.0]))
        self.faults = draw(st.booleans())  # lost workers, failing verifiers, a resumed run
        self.options = {"groups_per_update": P, "updates": updates, **options}
        self.k, self.P, self.now, self.queue_max = k, P, 0.0, 0
        self.schedule = BoundedStaleness(k, **self.options)

    def check(self):
        s, counts = self.schedule, self.schedule.ledger.counts()
        s.ledger.check()
        assert s.ledger.in_flight <= (self.k + 1) * self.P + s.extra, "capacity exceeded"
        assert counts[TRAINED] == s.version * self.P
        assert all(0 <= staleness <= self.k for staleness in s.ledger.staleness)
        if s.when_exceeded == "wait" and s.group_timeout is None and not s.extra and not self.faults:
            assert counts[DROPPED] == 0

    def enabled(self):
        """What can happen now, beside the passing of time."""
        s = self.schedule
        generating, verifying = s.ledger.tickets(GENERATING), s.ledger.tickets(VERIFYING)
        events = [("arrive", ticket) for ticket in generating] + [("verify", ticket) for ticket in verifying]
        if s.next_batch() is not None:
            events.append(("learn", None))
        return events

    def step(self, events):
        s, draw = self.schedule, self.draw
        faults = ["lost", "verifier", "resume"] if self.faults and draw(st.integers(0, 9)) == 0 else []
        kind, ticket = draw(st.sampled_from(events + [(fault, None) for fault in faults]))
        if kind == "arrive":
            rollouts = st.lists(st.integers(s.bound(ticket), s.version), min_size=1, max_size=3)
            assert s.generated(ticket, draw(rollouts))
        elif kind == "verify":
            assert s.verified(ticket)
        elif kind == "learn":
            batch = s.next_batch()
            assert len(set(batch)) == self.P and all(s.ledger.state(ticket) == READY for ticket in batch)
            aborted = s.train(batch)
            assert all(s.ledger.state(ticket) == DROPPED for ticket in aborted)
        elif kind == "lost":
            for ticket in s.ledger.tickets(GENERATING):
                s.reissue(ticket, self.now)
        elif kind == "verifier" and s.ledger.tickets(VERIFYING):
            s.drop(draw(st.sampled_from(s.ledger.tickets(VERIFYING))), "verifier")
        elif kind == "resume":
            self.schedule = BoundedStaleness(self.k, **self.options)
            self.schedule.restore(json.loads(json.dumps(s.to_plain())), self.now)

    def run(self):
        for _ in range(4000):
            self.check()
            s = self.schedule
            if s.version == s.updates:
                break
            s.issue(self.now)
            self.check()
            events = self.enabled()
            assert events, "deadlock: nothing can happen and the run is not over"
            self.step(events)
            self.now += self.draw(st.sampled_from([0.0, 0.0, 0.0, 1.0]))
            s = self.schedule
            assert all(s.ledger.state(ticket) == DROPPED for ticket in s.expire(self.now))
        assert s.ledger.in_flight == 0, "a finished run leaves groups in flight"
        assert len({ticket for batch in s.ledger.updates.values() for ticket in batch}) == s.updates * self.P


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_promises_hold_in_every_order(data):
    Simulation(data.draw).run()
