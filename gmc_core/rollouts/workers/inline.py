"""A rollout worker without a process: its owner pumps it. Deterministic, for tests, notebooks and the drained mode."""

from __future__ import annotations

import queue
import time
from collections import deque

import torch

from gmc_core.rollouts.engine_spec import EngineSpec
from gmc_core.rollouts.workers.messages import Close, Command, Event, Failed, Ready
from gmc_core.rollouts.workers.server import EngineServer


class InlineWorker:
    """`RolloutWorker` in the caller's thread.

    Nothing happens until it is pumped: whoever waits for an event calls `pump()` of its inline workers in turn while
    `events` is empty. The engine is built by the first `pump()` and runs with the caller's number of threads.
    """

    def __init__(
        self,
        name: str,
        spec: EngineSpec,
        events: queue.SimpleQueue[Event],
        in_flight_updates: bool = True,
    ) -> None:
        self.name = name
        self.spec = spec
        self.events = events
        self.in_flight_updates = in_flight_updates
        self._early: deque[Command] = deque()  # commands before the engine is built
        self._server: EngineServer | None = None
        self._closed = False

    def send(self, command: Command) -> None:
        if self._closed:
            return
        if isinstance(command, Close):
            self.close()
        elif self._server is None:
            self._early.append(command)
        else:
            self._server.take(command)

    def pump(self) -> bool:
        """Work until an event is posted. False: there was none to post, and will be none before the next command."""
        if self._closed:
            return False
        if self._server is None:
            self._start()
            return True
        while True:
            found = self._server.advance()
            for event in found:
                self.events.put(event)
            self._closed = self._server.closed
            if found or self._server.idle:
                return bool(found)

    def close(self, timeout: float = 5.0) -> None:
        """At once; `timeout` is there for the protocol."""
        self._closed = True
        self._early.clear()
        if self._server is not None:
            self._server.close()

    def _start(self) -> None:
        started, threads = time.time(), torch.get_num_threads()
        try:
            engine = self.spec.build()
        except Exception as error:
            self._closed = True
            reason = f"worker {self.name} could not start: {type(error).__name__}: {error}"
            self.events.put(Failed(self.name, reason, recoverable=False))
            return
        finally:
            torch.set_num_threads(threads)  # the learner runs in this process as well
        self._server = EngineServer(engine, self.name, self.in_flight_updates)
        while self._early:
            self._server.take(self._early.popleft())
        self.events.put(Ready(self.name, time.time() - started))
