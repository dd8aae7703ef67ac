"""A rollout worker in a process of its own."""

from __future__ import annotations

import queue
import threading
from pathlib import Path

from gmc_core.rollouts.child_process import ChildProcess, dumps
from gmc_core.rollouts.engine_spec import EngineSpec
from gmc_core.rollouts.workers.messages import Close, Command, Event, Failed, Ready


class ProcessWorker:
    """`RolloutWorker` around a child process, which is started at once and builds its engine on its own time.

    `log`: a file for what the child prints (default: a temporary one, whose end is in the reason of a `Failed`).
    A child that is killed gives `Failed(recoverable=True)` at once; one that could not start (a missing package or
    model), or found a fault of its engine, says why with `recoverable=False`. It ends when this process ends, however.
    """

    def __init__(
        self,
        name: str,
        spec: EngineSpec,
        events: queue.SimpleQueue[Event],
        in_flight_updates: bool = True,
        log: Path | None = None,
    ) -> None:
        self.name = name
        self.spec = spec
        self.events = events
        self._child = ChildProcess("gmc_core.rollouts.workers.process_main", spec.process_environment(), log)
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._ended = threading.Event()  # by a Failed or by close: no more commands, no more events
        self._outbox.put(dumps((name, spec, in_flight_updates)))
        self._reader = threading.Thread(target=self._read, name=f"events of {name}", daemon=True)
        self._writer = threading.Thread(target=self._write, name=f"commands to {name}", daemon=True)
        self._reader.start()
        self._writer.start()

    @property
    def pid(self) -> int:
        return self._child.pid

    def send(self, command: Command) -> None:
        """Note a command for the child. Raises what pickling raises for one that cannot travel."""
        if not self._ended.is_set():
            self._outbox.put(dumps(command))

    def kill(self) -> None:
        """For one that has stopped to answer: `Failed(recoverable=True)` follows, as after any other kill."""
        self._child.kill()

    def close(self, timeout: float = 5.0) -> None:
        """Let the child finish its step and end; kill it after `timeout` seconds."""
        self._ended.set()
        self._outbox.put(dumps(Close()))
        self._child.wait(timeout)
        self._child.kill()
        self._reader.join()
        self._outbox.put(None)
        self._writer.join(1.0)
        self._child.close()

    def _write(self) -> None:
        while (message := self._outbox.get()) is not None:
            try:
                self._child.connection.send_bytes(message)
            except OSError:  # the reader reports the end
                return

    def _read(self) -> None:
        ready = False
        for event in self._child.messages():
            ready |= isinstance(event, Ready)
            if self._ended.is_set():
                continue
            if isinstance(event, Failed):
                self._ended.set()
            self.events.put(event)
        self._child.kill()  # what it has started ends with it
        if not self._ended.is_set():
            self._ended.set()
            self.events.put(Failed(self.name, self._why(ready), recoverable=ready or self._child.exit_code < 0))

    def _why(self, ready: bool) -> str:
        state = "while it worked" if ready else "before its engine was built"
        return f"worker {self.name} (process {self.pid}) was lost {state}: {self._child.obituary()}"
