"""The ledger of a live run: where every group of rollouts that was ever issued is now.

                 +--------------------------------> dropped (with a reason)
                 |              |             |
    issued -> generating -> verifying -> ready -> trained (in one update, once)
                 |  ^
                 +--+  its worker was lost: issued again, under the same ticket

Tickets are the numbers 0, 1, 2, ... A group is trained on once or dropped once, and nothing leaves those two states:
whatever the schedule, the workers or a resumed run do wrong shows up here as a LedgerError, not as a wrong gradient.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

GENERATING, VERIFYING, READY, TRAINED, DROPPED = "generating", "verifying", "ready", "trained", "dropped"
IN_FLIGHT = (GENERATING, VERIFYING, READY)
STATES = (*IN_FLIGHT, TRAINED, DROPPED)
_NEXT = {
    GENERATING: (VERIFYING, DROPPED),
    VERIFYING: (READY, GENERATING, DROPPED),  # back: a checkpoint keeps no group that was not verified
    READY: (TRAINED, DROPPED),
    TRAINED: (),
    DROPPED: (),
}
_LETTER = {GENERATING: "g", VERIFYING: "v", READY: "r", TRAINED: "t", DROPPED: "d"}
_STATE = {letter: state for state, letter in _LETTER.items()}


class LedgerError(RuntimeError):
    """A group would be lost, invented or trained on twice: a fault of the loop, never of the data."""


class Ledger:
    """The state of every ticket, what was dropped and why, and the staleness of every rollout that was trained on."""

    def __init__(self) -> None:
        self._states: list[str] = []  # by ticket
        self._open: dict[int, None] = {}  # tickets in flight: few, whatever the length of the run
        self._counts: Counter[str] = Counter()
        self.reasons: dict[int, str] = {}  # of the dropped tickets
        self.updates: dict[int, tuple[int, ...]] = {}  # update -> the tickets it was trained on
        self.staleness: Counter[int] = Counter()  # staleness in updates -> rollouts trained on at it
        self.reissued = 0  # times that a ticket was issued again because its worker was lost

    # --- transitions ---

    def issue(self) -> int:
        """The next ticket, now generating."""
        ticket = len(self._states)
        self._states.append(GENERATING)
        self._open[ticket] = None
        self._counts[GENERATING] += 1
        return ticket

    def generated(self, ticket: int) -> None:
        self._move(ticket, VERIFYING)

    def verified(self, ticket: int) -> None:
        self._move(ticket, READY)

    def reissue(self, ticket: int) -> None:
        """Its worker is gone and with it what was generated: it is generated again."""
        if self.state(ticket) != GENERATING:
            self._move(ticket, GENERATING)
        self.reissued += 1

    def train(self, update: int, tickets: Sequence[int], staleness: Iterable[int]) -> None:
        """These groups are what update number `update` (from 1) learns from; `staleness` of each of their rollouts."""
        if update in self.updates:
            raise LedgerError(f"update {update} has been trained already, on tickets {list(self.updates[update])}")
        staleness = [int(value) for value in staleness]
        if any(value < 0 for value in staleness):
            raise LedgerError(f"update {update} has rollouts of staleness {min(staleness)}: sampled by a later policy")
        for ticket in tickets:
            self._require(ticket, TRAINED)
        if len(set(tickets)) != len(tickets):
            raise LedgerError(f"update {update} has a ticket twice: {list(tickets)}")
        for ticket in tickets:
            self._move(ticket, TRAINED)
        self.updates[update] = tuple(tickets)
        self.staleness.update(staleness)

    def drop(self, ticket: int, reason: str) -> None:
        self._move(ticket, DROPPED)
        self.reasons[ticket] = reason

    def _require(self, ticket: int, to: str) -> None:
        """LedgerError unless this ticket may become `to`."""
        state = self.state(ticket)
        if to not in _NEXT[state]:
            detail = ""
            if state == TRAINED:
                detail = f" in update {next(u for u, tickets in self.updates.items() if ticket in tickets)}"
            elif state == DROPPED:
                detail = f" ({self.reasons[ticket]})"
            raise LedgerError(f"ticket {ticket} is {state}{detail} and cannot become {to}")

    def _move(self, ticket: int, to: str) -> None:
        self._require(ticket, to)
        state = self._states[ticket]
        self._states[ticket] = to
        self._counts[state] -= 1
        self._counts[to] += 1
        if to not in IN_FLIGHT:
            del self._open[ticket]

    # --- questions ---

    @property
    def issued(self) -> int:
        """Tickets issued so far, which is also the number of the next one: the data cursor."""
        return len(self._states)

    def state(self, ticket: int) -> str:
        """LedgerError for a ticket that was never issued."""
        if not isinstance(ticket, int) or not 0 <= ticket < len(self._states):
            raise LedgerError(f"ticket {ticket!r} was never issued; tickets so far are 0 to {len(self._states) - 1}")
        return self._states[ticket]

    def tickets(self, *states: str) -> tuple[int, ...]:
        """Tickets in any of these states (default: in flight), oldest first."""
        wanted = states or IN_FLIGHT
        among = self._open if set(wanted) <= set(IN_FLIGHT) else range(len(self._states))
        return tuple(ticket for ticket in among if self._states[ticket] in wanted)

    def counts(self) -> dict[str, int]:
        """Tickets by state, every state named."""
        return {state: self._counts[state] for state in STATES}

    @property
    def in_flight(self) -> int:
        return sum(self._counts[state] for state in IN_FLIGHT)

    def drop_reasons(self) -> dict[str, int]:
        """Dropped tickets by reason."""
        return dict(sorted(Counter(self.reasons.values()).items()))

    def check(self) -> None:
        """LedgerError unless issued = trained + dropped + in flight, each ticket counted once."""
        trained = [ticket for tickets in self.updates.values() for ticket in tickets]
        problems = []
        if len(set(trained)) != len(trained):
            twice = sorted(ticket for ticket, count in Counter(trained).items() if count > 1)
            problems.append(f"tickets {twice[:5]} were trained on more than once")
        if set(trained) != set(self.tickets(TRAINED)):
            problems.append("the tickets of the updates are not those in state trained")
        if set(self.reasons) != set(self.tickets(DROPPED)):
            problems.append("the tickets with a reason are not those in state dropped")
        if tuple(self._open) != tuple(t for t, state in enumerate(self._states) if state in IN_FLIGHT):
            problems.append("the tickets in flight are not those whose states say so")
        if Counter(self._states) != +self._counts:
            problems.append(f"the counts {dict(self._counts)} are not those of the tickets")
        if (total := self._counts[TRAINED] + self._counts[DROPPED] + self.in_flight) != self.issued:
            problems.append(f"{self.issued} issued, {total} trained, dropped or in flight")
        if problems:
            raise LedgerError("the ledger does not balance: " + "; ".join(problems))

    # --- plain data ---

    def to_plain(self) -> dict[str, Any]:
        """Everything as JSON data; `states` has a letter per ticket (g, v, r, t, d)."""
        return {
            "issued": self.issued,
            "counts": self.counts(),
            "drop_reasons": self.drop_reasons(),
            "reissued": self.reissued,
            "staleness_rollouts": {str(value): count for value, count in sorted(self.staleness.items())},
            "states": "".join(_LETTER[state] for state in self._states),
            "dropped": {str(ticket): reason for ticket, reason in sorted(self.reasons.items())},
            "updates": {str(update): list(tickets) for update, tickets in sorted(self.updates.items())},
        }

    @classmethod
    def from_plain(cls, content: Mapping[str, Any]) -> Ledger:
        """The ledger that `to_plain` wrote. LedgerError if it does not balance, KeyError if a part is missing."""
        ledger = cls()
        unknown = sorted(set(content["states"]) - set(_STATE))
        if unknown:
            raise LedgerError(f"a ledger's states are the letters {''.join(_STATE)}; found {unknown}")
        ledger._states = [_STATE[letter] for letter in content["states"]]
        ledger._counts = Counter(ledger._states)
        ledger._open = {ticket: None for ticket, state in enumerate(ledger._states) if state in IN_FLIGHT}
        ledger.reasons = {int(ticket): reason for ticket, reason in content["dropped"].items()}
        ledger.updates = {int(update): tuple(tickets) for update, tickets in content["updates"].items()}
        ledger.staleness = Counter({int(value): count for value, count in content["staleness_rollouts"].items()})
        ledger.reissued = content["reissued"]
        if content["issued"] != ledger.issued:
            raise LedgerError(f"a ledger of {content['issued']} tickets holds the states of {ledger.issued}")
        ledger.check()
        return ledger
