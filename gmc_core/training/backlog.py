"""The groups of a live run from issue to update: where they stand in the schedule, and their tensors."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from gmc_core.rollouts.trajectories import Group
from gmc_core.rollouts.verification import Verified, VerifierFault
from gmc_core.training.bounded_staleness import BoundedStaleness
from gmc_core.training.fleet import RolloutFailure
from gmc_core.training.group_intake import from_tree, lowest_versions, mixed_fraction, with_rewards
from gmc_core.training.ledger import GENERATING, READY, VERIFYING, Ledger
from gmc_core.training.run_config import RunConfig
from gmc_core.training.run_directory import DamagedRecordError
from gmc_core.training.tickets import Tickets


class Backlog:
    """A `BoundedStaleness` for `config`, with the groups that go with its tickets."""

    def __init__(self, config: RunConfig, tickets: Tickets) -> None:
        self.schedule = BoundedStaleness(
            config.max_staleness,
            groups_per_update=config.prompts_per_update,
            updates=config.updates,
            when_exceeded=config.when_exceeded,
            in_order=config.is_deterministic,
            group_timeout=config.group_timeout,
            over_provision=config.over_provision,
            updates_per_batch=config.updates_per_batch,
        )
        self._tickets = tickets
        self._groups: dict[int, Group] = {}  # generated and not yet trained on
        self._misses = 0  # groups given up since the last one that got its rewards
        self._patience = max(8, 2 * config.prompts_per_update)

    @property
    def version(self) -> int:
        """Of the learner: updates behind it."""
        return self.schedule.version

    @property
    def ledger(self) -> Ledger:
        return self.schedule.ledger

    def arrived(self, ticket: int, group: Group) -> None:
        """A group was generated; its rewards are on their way."""
        self._groups[ticket] = group
        if not self.schedule.generated(ticket, lowest_versions(group)):
            del self._groups[ticket]

    def judged(self, event: Verified | VerifierFault) -> None:
        """A verifier has spoken. A group without rewards is dropped; RolloutFailure when there are only such."""
        ticket = event.ticket
        if self.ledger.state(ticket) != VERIFYING:
            return  # dropped meanwhile, or verified a second time after a replay
        if isinstance(event, Verified):
            self._groups[ticket] = with_rewards(self._groups[ticket], event.rewards)
            self.schedule.verified(ticket)
            self._misses = 0
            return
        if event.kind == "unavailable":
            raise RolloutFailure(event.reason)
        self.schedule.drop(ticket, f"verifier {event.kind}")
        del self._groups[ticket]
        self._missed(event.reason)

    def expire(self, now: float) -> list[int]:
        """Give up what took too long: the tickets to be aborted. RolloutFailure when that is all that happens."""
        late = self.schedule.expire(now)
        if late:
            self._missed(f"tickets {late[:5]} were not there after {self.schedule.group_timeout:g} seconds")
        return late

    def _missed(self, reason: str) -> None:
        self._misses += 1
        if self._misses > self._patience:
            raise RolloutFailure(
                f"{self._misses} times in a row groups were given up and none got its rewards in between "
                f"(dropped so far: {self.ledger.drop_reasons()}); the last: {reason}"
            )

    def take(self, tickets: Sequence[int]) -> list[Group]:
        return [self._groups[ticket] for ticket in tickets]

    def trained(self, tickets: Sequence[int]) -> list[int]:
        """The learner has taken its update with these; the tickets of unfinished groups that are to be aborted."""
        aborted = self.schedule.train(tickets)
        in_flight = set(self.ledger.tickets())
        self._groups = {ticket: group for ticket, group in self._groups.items() if ticket in in_flight}
        return aborted

    def staleness_metrics(self, tickets: Sequence[int]) -> dict[str, float]:
        """How old the rollouts of a batch are, each by the lowest version among its tokens."""
        groups = self.take(tickets)
        lowest = [low for group in groups for low in lowest_versions(group)]
        return {
            "update": self.version + 1,
            "policy_version": self.version,
            "behavior_version": sum(lowest) / len(lowest),
            "staleness": self.version - sum(lowest) / len(lowest),
            "staleness_max": self.version - min(lowest),
            "mixed_version_fraction": mixed_fraction(groups),
        }

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint: the schedule, and the groups that are there, verified or not."""
        groups = {str(ticket): self._groups[ticket].tensors for ticket in self.ledger.tickets(VERIFYING, READY)}
        return {"schedule": self.schedule.to_plain(), "groups": groups}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken. DamagedRecordError when its parts do not belong together."""
        self.schedule.restore(state["schedule"], time.monotonic())
        if set(state["groups"]) != set(map(str, self.ledger.tickets(VERIFYING, READY))):
            raise DamagedRecordError("the groups of the checkpoint are not those of its ledger")
        self._groups = {
            int(ticket): from_tree(self._tickets.prompt(int(ticket)), tree) for ticket, tree in state["groups"].items()
        }

    @property
    def unverified(self) -> dict[int, Group]:
        """Groups without rewards, by ticket."""
        return {ticket: self._groups[ticket] for ticket in self.ledger.tickets(VERIFYING)}

    @property
    def awaited(self) -> tuple[int, ...]:
        """Tickets that are being generated or verified."""
        return self.ledger.tickets(GENERATING, VERIFYING)
