"""`BoundedStaleness`: the live schedule. Generators run ahead; the learner takes whole groups, none older than k.

Pure bookkeeping: no processes, no tensors, no clock (times are passed in), so that every order of events can be tried.

The staleness of a group is the learner's version when it is trained on, minus the lowest policy version among its
tokens. Until a group is there, the version at which it was issued bounds that from below. At most (k + 1) P groups are
issued and not yet trained on or dropped: P groups per update, so a group issued now is learnt from in at most k updates
if the learner takes the oldest first and does not overtake.

What happens to a group that is late is the choice of `when_exceeded`:

- "wait": the learner takes no update that would make it impossible to train on everything in flight in time. Nothing is
  dropped (but for time-outs, and for as many groups as `over_provision` adds), at the price of waiting for stragglers.
- "drop": the learner goes on; a group that has become too old is dropped, and another prompt is issued. What is dropped
  is what takes long, so the learner sees more of the short responses than the policy gives: a bias of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gmc_core.training.ledger import DROPPED, GENERATING, READY, Ledger, LedgerError

WHEN_EXCEEDED = ("wait", "drop")
STALE, TIMEOUT, SURPLUS = "stale", "timeout", "surplus"  # why a schedule drops


@dataclass
class _Open:
    """A group in flight: the policy version below which none of its tokens lies, and since when it is being made."""

    bound: int
    since: float
    lowest_G: tuple[int, ...] | None = None  # lowest version of each rollout, once it is there


class BoundedStaleness:
    """What may be issued, what the next update takes, what is dropped. It owns the `Ledger`.

    `groups_per_update` is P; `updates` the length of the run: nothing is issued that could not be trained on.
    `in_order` takes tickets strictly in their order and issues at fixed points only, so that with one drained worker
    the schedule does not depend on time. `group_timeout`: seconds after which a group that is still being generated is
    given up. `over_provision`: additional groups in flight, as a fraction of P (rounded up), so that as many stragglers
    do not hold a step. `updates_per_batch`: B updates learn from what one policy sampled; groups are then issued before
    every B-th update only (and when drops leave the learner without), B P of them once the run is under way.
    """

    def __init__(
        self,
        max_staleness: int,
        *,
        groups_per_update: int,
        updates: int,
        when_exceeded: str = "wait",
        in_order: bool = False,
        group_timeout: float | None = None,
        over_provision: float = 0.0,
        updates_per_batch: int = 1,
    ) -> None:
        for name, value, least in (
            ("max_staleness", max_staleness, 0),
            ("groups_per_update", groups_per_update, 1),
            ("updates", updates, 1),
            ("updates_per_batch", updates_per_batch, 1),
        ):
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"BoundedStaleness got {name}={value!r}; expected an integer of at least {least}")
        if when_exceeded not in WHEN_EXCEEDED:
            raise ValueError(
                f"BoundedStaleness got when_exceeded={when_exceeded!r}; choose one of {', '.join(WHEN_EXCEEDED)}"
            )
        if group_timeout is not None and not group_timeout > 0:
            raise ValueError(f"BoundedStaleness got group_timeout={group_timeout!r}; expected seconds above 0, or None")
        if not 0 <= over_provision < math.inf:
            raise ValueError(f"BoundedStaleness got over_provision={over_provision!r}; expected a fraction, at least 0")
        if updates_per_batch > max_staleness + 1:
            raise ValueError(
                f"BoundedStaleness got updates_per_batch={updates_per_batch} with max_staleness={max_staleness}: the "
                f"last update of a batch is {updates_per_batch - 1} updates from its policy; allow at least that"
            )
        if in_order and (group_timeout is not None or over_provision):
            raise ValueError("BoundedStaleness in order has no time-out and no over-provision: both follow a clock")
        self.max_staleness, self.groups_per_update, self.updates = max_staleness, groups_per_update, updates
        self.when_exceeded, self.in_order, self.group_timeout = when_exceeded, in_order, group_timeout
        self.updates_per_batch = updates_per_batch
        self.extra = math.ceil(over_provision * groups_per_update)
        self.version = 0  # of the learner: updates behind it
        self.ledger = Ledger()
        self.dropped_since_update = 0
        self._open: dict[int, _Open] = {}
        self._at_update = True  # nothing was issued since the last update

    # --- issuing ---

    @property
    def capacity(self) -> int:
        """Groups that may be in flight now: (k + 1) P and the over-provision, never more than the run still needs."""
        left = self.updates - self.version
        return min(self.max_staleness + 1, left) * self.groups_per_update + (self.extra if left else 0)

    def issue(self, now: float) -> list[int]:
        """New tickets, to be generated from version `self.version` on; as many as the capacity allows."""
        room = self.capacity - len(self._open)
        between = self.version % self.updates_per_batch != 0
        if (between or (self.in_order and not self._at_update)) and not self._starving:
            return []
        if between:  # only what this update lacks: the rest waits for the next batch
            room = self.groups_per_update - len(self._open)
        self._at_update = False
        tickets = [self.ledger.issue() for _ in range(room)]
        for ticket in tickets:
            self._open[ticket] = _Open(bound=self.version, since=now)
        return tickets

    @property
    def _starving(self) -> bool:
        """Everything in flight is ready and it is not enough for an update: drops have to be made up for."""
        ready = len(self.ledger.tickets(READY))
        return ready == len(self._open) and ready < self.groups_per_update

    def reissue(self, ticket: int, now: float, version: int | None = None) -> None:
        """The worker of this ticket was lost; it is generated again, from `version` on (default: the learner's)."""
        self.ledger.reissue(ticket)
        self._open[ticket] = _Open(bound=self.version if version is None else version, since=now)

    def bound(self, ticket: int) -> int:
        """The version below which no token of this group in flight lies."""
        return self._open[ticket].bound

    # --- groups arrive ---

    def generated(self, ticket: int, lowest_G: Sequence[int]) -> bool:
        """The group is there; `lowest_G` is the lowest policy version in each of its rollouts.

        False if it comes too late: it was dropped meanwhile. Raises LedgerError for a group that came already, or of
        versions that this group cannot have.
        """
        if self.ledger.state(ticket) == DROPPED:
            return False
        if self.ledger.state(ticket) != GENERATING:
            raise LedgerError(f"a group came for ticket {ticket}, which is {self.ledger.state(ticket)}")
        entry = self._open[ticket]
        if not lowest_G or min(lowest_G) < entry.bound or max(lowest_G) > self.version:
            raise LedgerError(
                f"ticket {ticket} was issued at version {entry.bound} and the learner is at {self.version}, but the "
                f"lowest versions of its rollouts are {list(lowest_G)}"
            )
        self.ledger.generated(ticket)
        entry.lowest_G = tuple(lowest_G)
        entry.bound = min(lowest_G)
        return True

    def verified(self, ticket: int) -> bool:
        """Its rewards are there. False if it was dropped meanwhile."""
        if self.ledger.state(ticket) == DROPPED:
            return False
        self.ledger.verified(ticket)
        return True

    def drop(self, ticket: int, reason: str) -> None:
        self.ledger.drop(ticket, reason)
        del self._open[ticket]
        self.dropped_since_update += 1

    def hold(self, tickets: Iterable[int]) -> None:
        """Nobody works on these yet: their time does not run until `begin`."""
        self.begin(tickets, math.inf)

    def begin(self, tickets: Iterable[int], now: float) -> None:
        """The time of these tickets runs from now on, as after `issue`."""
        for ticket in tickets:
            self._open[ticket].since = now

    def overdue(self, now: float) -> list[int]:
        """Groups that have been generating for longer than `group_timeout`."""
        if self.group_timeout is None:
            return []
        return [t for t in self.ledger.tickets(GENERATING) if now - self._open[t].since > self.group_timeout]

    def expire(self, now: float) -> list[int]:
        """Drop what is overdue; these tickets are to be aborted."""
        late = self.overdue(now)
        for ticket in late:
            self.drop(ticket, TIMEOUT)
        return late

    def next_expiry(self) -> float | None:
        """When `expire` has to be called next, in the time of `now`."""
        since = [self._open[ticket].since for ticket in self.ledger.tickets(GENERATING)]
        return min(since) + self.group_timeout if since and self.group_timeout is not None else None

    # --- the learner takes ---

    def next_batch(self) -> tuple[int, ...] | None:
        """The P tickets of the next update, oldest first; None while the learner has to wait."""
        P = self.groups_per_update
        if self.in_order:
            batch = self.ledger.tickets()[:P]
            whole = len(batch) == P and all(self.ledger.state(ticket) == READY for ticket in batch)
            return batch if whole else None
        ready = sorted(self.ledger.tickets(READY), key=lambda ticket: (self._open[ticket].bound, ticket))
        if len(ready) < P:
            return None
        batch = tuple(ready[:P])
        return batch if self.when_exceeded == "drop" or self._rest_in_time(set(batch)) else None

    def _rest_in_time(self, batch: set[int]) -> bool:
        """Whether all groups left behind, but for `extra` of them, can still be trained on in time: P per update.

        The slack of a group is the number of updates that may be taken before it, once this batch is trained on. Sorted
        by slack, group j is taken by update j // P at the earliest.
        """
        slacks = sorted(
            entry.bound + self.max_staleness - (self.version + 1)
            for ticket, entry in self._open.items()
            if ticket not in batch
        )
        return all(slack >= j // self.groups_per_update for j, slack in enumerate(slacks[self.extra :]))

    def train(self, batch: Sequence[int]) -> list[int]:
        """The learner has taken an update with this batch; the tickets of unfinished groups that are now to be aborted.

        What has become too old is dropped; after the last update, so is everything left.
        """
        lowest = [self._open[ticket].lowest_G for ticket in batch if ticket in self._open]
        staleness = [self.version - version for lowest_G in lowest for version in lowest_G or ()]
        if staleness and max(staleness) > self.max_staleness:
            raise LedgerError(f"update {self.version + 1} has staleness {max(staleness)}, above {self.max_staleness}")
        self.ledger.train(self.version + 1, batch, staleness)
        for ticket in batch:
            del self._open[ticket]
        self.version += 1
        self.dropped_since_update = 0
        self._at_update = True
        over = self.version == self.updates
        late = [t for t, entry in self._open.items() if over or self.version - entry.bound > self.max_staleness]
        unfinished = [ticket for ticket in late if self.ledger.state(ticket) == GENERATING]
        for ticket in late:
            self.drop(ticket, SURPLUS if over else STALE)
        return unfinished

    # --- plain data ---

    def to_plain(self) -> dict[str, Any]:
        """What a checkpoint keeps, as JSON data."""
        return {
            "version": self.version,
            "ledger": self.ledger.to_plain(),
            "in_flight": {str(t): [entry.bound, entry.lowest_G] for t, entry in self._open.items()},
            "at_update": self._at_update,
            "dropped_since_update": self.dropped_since_update,
        }

    def restore(self, content: Mapping[str, Any], now: float) -> None:
        """Take over what `to_plain` wrote; groups that were being generated are still to be sent to a worker."""
        self.version, self._at_update = content["version"], content["at_update"]
        self.dropped_since_update = content["dropped_since_update"]
        self.ledger = Ledger.from_plain(content["ledger"])
        self._open = {
            int(ticket): _Open(bound, now, None if lowest_G is None else tuple(lowest_G))
            for ticket, (bound, lowest_G) in content["in_flight"].items()
        }
        if tuple(self._open) != self.ledger.tickets():
            raise LedgerError("the groups in flight of this checkpoint are not those of its ledger")
