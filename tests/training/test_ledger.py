"""Every ticket is in one state, and what must not happen to a group raises."""

import json

import pytest

from gmc_core.training.ledger import DROPPED, GENERATING, READY, TRAINED, VERIFYING, Ledger, LedgerError


def ledger_of(*states):
    """A ledger whose tickets 0, 1, ... are in these states."""
    ledger = Ledger()
    trained = []
    for state in states:
        ticket = ledger.issue()
        if state in (VERIFYING, READY, TRAINED):
            ledger.generated(ticket)
        if state in (READY, TRAINED):
            ledger.verified(ticket)
        if state == TRAINED:
            trained.append(ticket)
        if state == DROPPED:
            ledger.drop(ticket, "stale")
    if trained:
        ledger.train(1, trained, [0] * len(trained))
    return ledger


ALL = (TRAINED, DROPPED, GENERATING, VERIFYING, READY)


def test_issued_is_trained_plus_dropped_plus_in_flight():
    ledger = ledger_of(*ALL)
    ledger.check()
    assert ledger.counts() == {GENERATING: 1, VERIFYING: 1, READY: 1, TRAINED: 1, DROPPED: 1}
    assert (ledger.issued, ledger.in_flight) == (5, 3)
    assert ledger.tickets() == (2, 3, 4) and ledger.tickets(TRAINED, DROPPED) == (0, 1)


@pytest.mark.parametrize("state", ALL)
@pytest.mark.parametrize("action", ["generated", "verified", "train", "drop", "reissue"])
def test_only_the_transitions_of_the_diagram_are_legal(state, action):
    legal = {
        GENERATING: {"generated", "drop", "reissue"},
        VERIFYING: {"verified", "drop", "reissue"},
        READY: {"train", "drop"},
        TRAINED: set(),
        DROPPED: set(),
    }
    ledger = ledger_of(state)
    do = {
        "generated": lambda: ledger.generated(0),
        "verified": lambda: ledger.verified(0),
        "train": lambda: ledger.train(2, [0], [0]),
        "drop": lambda: ledger.drop(0, "timeout"),
        "reissue": lambda: ledger.reissue(0),
    }[action]
    if action in legal[state]:
        do()
    else:
        with pytest.raises(LedgerError, match=f"ticket 0 is {state}"):
            do()
        assert ledger.state(0) == state
    ledger.check()


def test_messages_name_ticket_update_and_reason():
    ledger = ledger_of(TRAINED, DROPPED, READY)
    with pytest.raises(LedgerError, match=r"ticket 0 is trained in update 1 and cannot become trained"):
        ledger.train(2, [0], [0])
    with pytest.raises(LedgerError, match=r"ticket 1 is dropped \(stale\)"):
        ledger.verified(1)
    with pytest.raises(LedgerError, match=r"ticket 7 was never issued; tickets so far are 0 to 2"):
        ledger.generated(7)
    with pytest.raises(LedgerError, match=r"update 1 has been trained already, on tickets \[0\]"):
        ledger.train(1, [2], [0])
    with pytest.raises(LedgerError, match="sampled by a later policy"):
        ledger.train(2, [2], [-1])


def test_a_batch_with_a_ticket_twice_is_refused():
    ledger = ledger_of(READY)
    with pytest.raises(LedgerError, match=r"update 1 has a ticket twice: \[0, 0\]"):
        ledger.train(1, [0, 0], [0, 0])
    assert ledger.state(0) == READY


def test_histogram_and_reasons():
    ledger = Ledger()
    for _ in range(4):
        ledger.verified((ledger.generated(ticket := ledger.issue()), ticket)[1])
    ledger.train(1, [0, 1], [0, 2, 2, 1])
    ledger.train(2, [2], [2, 0])
    ledger.drop(3, "timeout")
    assert ledger.staleness == {0: 2, 1: 1, 2: 3}
    assert ledger.drop_reasons() == {"timeout": 1} and ledger.updates == {1: (0, 1), 2: (2,)}


def test_plain_data_comes_back_the_same():
    ledger = ledger_of(*ALL)
    ledger.reissue(2)
    plain = json.loads(json.dumps(ledger.to_plain()))
    again = Ledger.from_plain(plain)
    assert again.to_plain() == ledger.to_plain() and again.tickets() == ledger.tickets()
    assert again.issue() == 5


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda plain: plain.update(states="tdgvt"), "updates are not those in state trained"),
        (lambda plain: plain.update(states="tdgvd"), "not those in state dropped"),
        (lambda plain: plain.update(issued=6), "6 tickets holds the states of 5"),
        (lambda plain: plain.update(states="tdgvx"), r"letters gvrtd; found \['x'\]"),
        (lambda plain: plain["updates"].update({"2": [0]}), "more than once"),
    ],
)
def test_a_ledger_that_does_not_balance_is_refused(damage, message):
    plain = ledger_of(*ALL).to_plain()
    damage(plain)
    with pytest.raises(LedgerError, match=message):
        Ledger.from_plain(plain)
