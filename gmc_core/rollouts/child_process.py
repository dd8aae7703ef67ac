"""A Python process of our own: started clean, spoken to through a pipe, gone when its parent is gone.

`multiprocessing` with "spawn" would import the caller's `__main__` again and could not set variables before torch is
imported; here the child is `python -m <module>` with its own environment, in a session of its own (a Ctrl-C in the
terminal or an interrupted notebook cell is the parent's affair), and a kill reaches whatever it has started itself.
For Linux and macOS: the pipe is handed over as a file descriptor.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

POLL_SECONDS = 0.2  # how long a death may go unnoticed when a grandchild holds the pipe open


class ChildProcess:
    """`python -m module`, whose main begins with `connect()`. `log` takes its output (default: a temporary file)."""

    def __init__(self, module: str, environment: Mapping[str, str] | None = None, log: Path | None = None) -> None:
        self.connection, theirs = Pipe()
        self._log = tempfile.TemporaryFile() if log is None else open(log, "a+b")  # noqa: SIM115 (closed by kill)
        self._lock, self._killed = threading.Lock(), False
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, str(theirs.fileno()), str(os.getpid())],
                env=os.environ | {"PYTHONPATH": path} | dict(environment or {}),
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        finally:
            theirs.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def send(self, message: Any) -> None:
        """Blocks while the child does not read. OSError when it is gone."""
        self.connection.send_bytes(dumps(message))

    def receive(self, timeout: float | None = None) -> Any:
        """The next message. TimeoutError after `timeout` seconds, EOFError when the child is gone."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            alive = self.alive  # asked before the pipe, so that its last words are heard
            left = POLL_SECONDS if deadline is None else min(POLL_SECONDS, max(0.0, deadline - time.monotonic()))
            try:
                if self.connection.poll(left if alive else 0):
                    return loads(self.connection.recv_bytes())
            except OSError as error:  # closed here, or broken off there
                raise EOFError(str(error)) from error
            if not alive:
                raise EOFError("the child has ended")
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"no answer within {timeout} seconds")

    def messages(self) -> Iterator[Any]:
        """What the child sends, until it is gone."""
        with contextlib.suppress(EOFError):
            while True:
                yield self.receive()

    def wait(self, timeout: float) -> bool:
        """Whether it has ended, after at most so many seconds."""
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """End it and what it has started, now."""
        with self._lock:
            if not self._killed:  # once: later its number may be another's
                self._killed = True
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, signal.SIGKILL)  # the number of its session is its own
        self._process.wait()

    def close(self) -> None:
        """Kill it if it lives and release the pipe and the log."""
        self.kill()
        self.connection.close()
        self._log.close()

    def obituary(self, lines: int = 15) -> str:
        """How it ended and the end of what it wrote. Only after its end and before `close`."""
        code = self._process.wait()
        if code < 0:
            how = f"killed by signal {-code} ({signal.Signals(-code).name})"
            how += ", by hand or by the system for want of memory" if code == -signal.SIGKILL else ""
        else:
            how = f"ended with exit code {code}"
        self._log.seek(0, io.SEEK_END)
        self._log.seek(max(0, self._log.tell() - 20_000))
        tail = self._log.read().decode(errors="replace").strip().splitlines()[-lines:]
        return "\n".join([how + (". Its last output:" if tail else ""), *tail])

    @property
    def exit_code(self) -> int | None:
        """Negative: minus the number of the signal that killed it. None: it lives."""
        return self._process.poll()


def connect(at_orphaned: Callable[[], None] | None = None) -> Connection:
    """The child's side, first thing in its main: the pipe to the parent. The child dies with the parent from now on.

    `at_orphaned` runs before it dies for that reason.
    """
    descriptor, parent = int(sys.argv[1]), int(sys.argv[2])
    os.set_inheritable(descriptor, False)  # what the child starts must not hold the pipe open
    threading.Thread(target=_end_with_parent, args=(parent, at_orphaned), daemon=True).start()
    return Connection(descriptor)


def await_orphaned(seconds: float = 10.0) -> None:
    """For a main whose pipe has ended: leave the end to the watcher of `connect`, which then tidies up first.

    Returns after `seconds`: the parent lives and has only closed the pipe.
    """
    time.sleep(seconds)


def end_process_group() -> None:
    """End the calling child and what it has started."""
    if os.getpgrp() == os.getpid():  # always, but for a main that somebody runs by hand
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(1)


def _end_with_parent(parent: int, at_orphaned: Callable[[], None] | None) -> None:
    while os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    try:
        if at_orphaned is not None:
            at_orphaned()
    finally:
        end_process_group()


# --- messages as bytes ---


class _Pickler(pickle.Pickler):
    """Plain pickle with tensors as bytes: torch's own way through pipes keeps a file descriptor per tensor."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            flat = value.detach().cpu().contiguous().reshape(-1)
            return _tensor, (bytearray(flat.view(torch.uint8).numpy()), value.dtype, tuple(value.shape))
        return NotImplemented


def _tensor(data: bytearray, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    return torch.frombuffer(data, dtype=dtype).reshape(shape) if data else torch.empty(shape, dtype=dtype)


def dumps(message: Any) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer, protocol=5).dump(message)
    return buffer.getvalue()


loads = pickle.loads  # of what our own child or parent wrote
