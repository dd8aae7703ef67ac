"""The worker's side: an engine behind commands and events. Pure and synchronous; a process or an actor runs it.

`take` notes a command, `advance` does one piece of work and says what happened. Nothing an engine returns is passed on
unseen: a broken group would train silently, so the worker stops the run with a message instead.
"""

from __future__ import annotations

import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from gmc_core.rollouts.continuous import ContinuousEngine, EngineLost, GroupRequest
from gmc_core.rollouts.trajectories import Group
from gmc_core.rollouts.workers.checks import EngineFault, check_group, check_probe
from gmc_core.rollouts.workers.messages import (
    Abort,
    Busy,
    Close,
    Command,
    Event,
    Failed,
    Generate,
    GroupDone,
    LoadWeights,
    WeightsLoaded,
)

BUSY_SECONDS = 5.0  # a longer interval is reported in pieces, so that the driver sees that work goes on


@dataclass
class _Issued:
    request: GroupRequest
    started: float | None = None  # when the first step with it in flight began


class EngineServer:
    """Runs one engine for one driver.

    `in_flight_updates`: see messages.py. `clock` is `time.time` but for tests.
    After a `Failed` among the events, or a `Close`, `closed` is True and nothing more is done.
    """

    def __init__(
        self,
        engine: ContinuousEngine,
        name: str,
        in_flight_updates: bool = True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.engine = engine
        self.name = name
        self.in_flight_updates = in_flight_updates
        self.closed = False
        self._clock = clock
        self._commands: deque[Command] = deque()
        self._issued: dict[int, _Issued] = {}  # given to the engine, neither returned nor aborted
        self._versions = [engine.policy_version]  # in the order in which they were loaded
        self._first_version: dict[int, int] = {}  # ticket -> index in `_versions` when it was given to the engine
        self._busy: Busy | None = None

    @property
    def idle(self) -> bool:
        """Nothing to do until the next command."""
        return self.closed or not (self._commands or self._issued or self._busy)

    def take(self, command: Command) -> None:
        """Note a command. `Abort` and `Close` act at once, the others within `advance`."""
        if self.closed:
            return
        if isinstance(command, Close):
            self.close()
        elif isinstance(command, Abort):
            self._abort(set(command.tickets))
        elif isinstance(command, Generate | LoadWeights):
            self._commands.append(command)
        else:
            raise TypeError(
                f"worker {self.name} got a {type(command).__name__}; it takes Generate, LoadWeights, Abort and Close"
            )

    def advance(self) -> list[Event]:
        """Carry out what waits, then one step of the engine. Returns at once when idle (with the last `Busy`)."""
        if self.closed:
            return []
        events: list[Event] = []
        try:
            self._commands_due(events)
            if self._issued:
                self._step(events)
            if not self._issued:
                self._end_busy(events)
        except EngineLost as error:
            events.append(self._fail(f"worker {self.name} lost its engine: {error}", recoverable=True))
        except EngineFault as error:
            events.append(self._fail(f"worker {self.name}: {error}", recoverable=False))
        except Exception as error:
            where = traceback.format_exc(limit=-3)
            reason = f"worker {self.name} failed: {type(error).__name__}: {error}\n{where}"
            events.append(self._fail(reason, recoverable=False))
        return events

    def close(self) -> None:
        """Release the engine; what is in flight is forgotten."""
        if not self.closed:
            self.closed = True
            self._commands.clear()
            self._issued.clear()
            self.engine.close()

    # --- commands ---

    def _commands_due(self, events: list[Event]) -> None:
        if self.in_flight_updates:
            newest = next((c for c in reversed(self._commands) if isinstance(c, LoadWeights)), None)
            while self._commands:
                command = self._commands.popleft()
                if isinstance(command, Generate):
                    self._generate(command)
                elif command is newest:
                    self._load(command, events)
            return
        while self._commands and not self._issued:  # strict order: what came before is finished
            command = self._commands.popleft()
            if isinstance(command, Generate):
                self._generate(command)
            else:
                self._load(command, events)

    def _generate(self, command: Generate) -> None:
        for request in command.requests:
            self.engine.add(request)
            self._issued[request.ticket] = _Issued(request)
            self._first_version[request.ticket] = len(self._versions) - 1

    def _load(self, command: LoadWeights, events: list[Event]) -> None:
        self._end_busy(events)
        current, version = self._versions[-1], command.version
        if version < current:
            raise EngineFault(
                f"was told to load policy version {version} after {current}; versions of a run only grow. Start a new "
                "worker to go back to a checkpoint"
            )
        started = self._clock()
        self.engine.update_weights(command.source.load(), version)
        self._versions.append(version)
        if self.engine.policy_version != version:
            raise EngineFault(
                f"the engine says policy version {self.engine.policy_version} right after version {version} was "
                "loaded: the update was not taken, so every ratio would be wrong. Check the engine's update_weights"
            )
        gap = check_probe(self.engine, command.probe, version) if command.probe is not None else None
        events.append(WeightsLoaded(self.name, version, started, self._clock(), gap))

    def _abort(self, tickets: set[int]) -> None:
        for command in list(self._commands):
            if isinstance(command, Generate) and any(request.ticket in tickets for request in command.requests):
                rest = tuple(request for request in command.requests if request.ticket not in tickets)
                self._commands[self._commands.index(command)] = replace(command, requests=rest)
        started = tickets & self._issued.keys()
        if started:
            self.engine.abort(sorted(started))
        for ticket in started:
            del self._issued[ticket], self._first_version[ticket]

    # --- generation ---

    def _step(self, events: list[Event]) -> None:
        started, sampled = self._clock(), self.engine.tokens_sampled
        for issued in self._issued.values():
            issued.started = started if issued.started is None else issued.started
        done = self.engine.step()
        finished = self._clock()
        for ticket, group in done:
            events.append(self._done(ticket, group, finished))
        if lost := self._issued.keys() - set(self.engine.in_flight):
            raise EngineFault(
                f"the engine neither returned nor kept ticket {min(lost)} ({len(lost)} lost, policy version "
                f"{self._versions[-1]}): its group would be waited for for ever. Check the engine's step"
            )
        self._note_busy(started, finished, self.engine.tokens_sampled - sampled, events)

    def _done(self, ticket: int, group: Group, finished: float) -> GroupDone:
        if ticket not in self._issued:
            raise EngineFault(
                f"the engine returned ticket {ticket}, which nobody asked for or which it returned before (policy "
                f"version {self._versions[-1]}): training on it would count rollouts twice. Check the engine's step"
            )
        versions = self._versions[self._first_version[ticket] :]
        check_group(self._issued[ticket].request, group, versions)
        started = self._issued.pop(ticket).started
        del self._first_version[ticket]
        return GroupDone(self.name, ticket, group.to("cpu"), started, finished)

    def _note_busy(self, started: float, finished: float, tokens: int, events: list[Event]) -> None:
        if self._busy is not None:
            started, tokens = self._busy.started, self._busy.tokens + tokens
        self._busy = Busy(self.name, self._versions[-1], started, finished, tokens)
        if finished - started >= BUSY_SECONDS:
            self._end_busy(events)

    def _end_busy(self, events: list[Event]) -> None:
        if self._busy is not None:
            events.append(self._busy)
            self._busy = None

    def _fail(self, reason: str, *, recoverable: bool) -> Failed:
        failed = Failed(self.name, reason, recoverable)
        try:
            self.close()
        except Exception as error:  # the engine is broken already; its first fault is the one to report
            failed = replace(failed, reason=f"{reason}\n(closing the engine failed too: {error})")
        return failed
