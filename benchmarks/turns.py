"""Two sides that take turns: each in a child process with one thread, a block of updates at a time.

Whatever else the machine does falls on both alike. While one runs, the other waits. Start-up and the warm-up updates
are not timed. On a busy machine the ratio in CPU time says more than the one on the clock.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

WARM_UP, BLOCK, BLOCKS = 2, 5, 5  # updates before the first block, updates of a block, blocks of each side
UPDATES = WARM_UP + BLOCK * BLOCKS  # that a side takes


@dataclass(frozen=True)
class Block:
    """Seconds of one update, on average over a block: on the clock, those of them in a part, and of CPU time."""

    wall: float
    part: float  # spent in what `Pace.watch` watches
    cpu: float


Side = Callable[[Any, Path, "Pace"], None]  # (setting, scratch folder, pace): takes UPDATES updates


def paired_blocks(sides: Mapping[str, Side], setting: Any) -> list[dict[str, Block]]:
    """The blocks of every side, round by round. A side is a function of a module, since its process imports it.

    RuntimeError names a side that ends early.
    """
    with ExitStack() as stack:
        ends = {name: stack.enter_context(_child(name, side, setting)) for name, side in sides.items()}
        for name, end in ends.items():
            _receive(name, end)
        return [{name: _block(name, end) for name, end in ends.items()} for _ in range(BLOCKS)]


class Pace:
    """Counts a side's updates, waits for its turn before each block and reports the block after it."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.updates = 0
        self.part = 0.0  # seconds so far

    def after_update(self) -> None:
        self.updates += 1
        timed = self.updates - WARM_UP
        if timed < 0 or timed % BLOCK:
            return
        if timed == 0:
            self.connection.send("ready")
        else:
            wall, cpu, part = (now - then for now, then in zip(self._clocks(), self.start, strict=True))
            self.connection.send(Block(wall=wall / BLOCK, part=part / BLOCK, cpu=cpu / BLOCK))
        if timed < BLOCK * BLOCKS:
            self.connection.recv()
            self.start = self._clocks()

    def watch(self, function: Callable) -> Callable:
        """`function`, its seconds counted as those of the part."""

        def timed(*arguments, **options):
            start = time.perf_counter()
            result = function(*arguments, **options)
            self.part += time.perf_counter() - start
            return result

        return timed

    def _clocks(self) -> tuple[float, float, float]:
        return time.perf_counter(), time.process_time(), self.part


# --- in the parent ----------------------------------------------------------------------------------------------------


@contextmanager
def _child(name: str, side: Side, setting: Any) -> Iterator[Connection]:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_run_side, args=(side, setting, there), daemon=True, name=name)
    process.start()
    there.close()  # so that a child's end is the end of the pipe
    try:
        yield here
        process.join(timeout=60)
    finally:
        process.kill()
        process.join()


def _block(side: str, connection: Connection) -> Block:
    connection.send("go")
    return _receive(side, connection)


def _receive(side: str, connection: Connection) -> Any:
    try:
        return connection.recv()
    except EOFError:
        raise RuntimeError(f"the process of side {side!r} ended too early; its own error stands above") from None


# --- in the child -----------------------------------------------------------------------------------------------------


def _run_side(side: Side, setting: Any, connection: Connection) -> None:
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        side(setting, Path(scratch), Pace(connection))
