"""Updates per second of our loop beside TRL's GRPOTrainer: same model, task, groups, batch, loss, step and threads.

Both start from the warm start on the same prompts. Each runs in a child process of its own with one thread; the two
take turns, a block of updates each, so that whatever else the machine does falls on both alike. While one runs, the
other waits. Start-up and two warm-up updates are not timed, and neither side evaluates. The updates that follow the
warm start are our dearest: responses differ most there, so they share the least work. On a busy machine the ratio in
CPU time says more than the one on the clock.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from benchmarks.skipped import BenchmarkSkipped
from benchmarks.trl_trainer import INSTALL, grpo_trainer, trl_version
from gmc_core import RunConfig, train
from gmc_core.rollouts.engine import TransformersEngine

WARM_UP, BLOCK, BLOCKS = 2, 5, 5  # updates before the first block, updates of a block, blocks of each side
SEEDS = (0, 1)  # a fresh pair of processes for each


@dataclass(frozen=True)
class Block:
    """Seconds of one update, on average over a block: on the clock, those of them spent sampling, and of CPU time."""

    wall: float
    sampling: float
    cpu: float


def measure() -> list[dict]:
    """Our updates per second, TRL's, and the ratio of the two."""
    version = trl_version()
    if version is None:
        raise BenchmarkSkipped(f"TRL is not installed; to run it: {INSTALL}")
    pairs = [pair for seed in SEEDS for pair in paired_blocks(reference_config(seed))]
    ours, theirs = zip(*pairs, strict=True)
    return [
        _rate("gmc_core.train, delay 0", ours),
        _rate(f"GRPOTrainer of TRL {version}", theirs),
        _ratio("times TRL's updates per second, from the warm start", [trl.wall / own.wall for own, trl in pairs]),
        _ratio("the same in CPU time", [trl.cpu / own.cpu for own, trl in pairs]),
    ]


def reference_config(seed: int) -> RunConfig:
    """The reference setting at delay 0, from the warm start; the evaluations that `train` insists on are not timed."""
    updates = WARM_UP + BLOCK * BLOCKS
    return RunConfig(seed=seed, updates=updates, evaluation_every=updates, evaluation_prompts=1)


def paired_blocks(config: RunConfig) -> list[tuple[Block, Block]]:
    """Blocks of ours and of TRL's, in turn: (ours, TRL's) of each round. RuntimeError if a side ends early."""
    with _child("ours", config) as ours, _child("trl", config) as theirs:
        _receive("ours", ours)
        _receive("trl", theirs)
        return [(_block("ours", ours), _block("trl", theirs)) for _ in range(BLOCKS)]


# --- in the parent ----------------------------------------------------------------------------------------------------


@contextmanager
def _child(side: str, config: RunConfig) -> Iterator[Connection]:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_run_side, args=(side, config, there), daemon=True)
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


def _rate(what: str, blocks: tuple[Block, ...]) -> dict:
    rates = [1 / block.wall for block in blocks]
    cpu = statistics.median(block.cpu for block in blocks)
    share = statistics.median(block.sampling / block.wall for block in blocks)
    return {
        "what": f"{what}, 8 prompts x 16 rollouts",
        "value": statistics.median(rates),
        "unit": "updates / s",
        "note": f"{min(rates):.3g} to {max(rates):.3g} over {len(blocks)} blocks of {BLOCK}; "
        f"{cpu:.3f} s CPU an update, {share:.0%} of the time sampling",
        "blocks": [vars(block) for block in blocks],
    }


def _ratio(what: str, ratios: list[float]) -> dict:
    return {
        "what": what,
        "value": statistics.median(ratios),
        "unit": "x",
        "note": f"{min(ratios):.3g} to {max(ratios):.3g} over {len(ratios)} pairs of blocks",
    }


# --- in the child -----------------------------------------------------------------------------------------------------


class Pace:
    """Counts a side's updates, waits for its turn before each block and reports the block after it."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.updates = 0
        self.sampling = 0.0  # seconds so far

    def after_update(self) -> None:
        self.updates += 1
        timed = self.updates - WARM_UP
        if timed < 0 or timed % BLOCK:
            return
        if timed == 0:
            self.connection.send("ready")
        else:
            wall, cpu, sampling = (now - then for now, then in zip(self._clocks(), self.start, strict=True))
            self.connection.send(Block(wall=wall / BLOCK, sampling=sampling / BLOCK, cpu=cpu / BLOCK))
        if timed < BLOCK * BLOCKS:
            self.connection.recv()
            self.start = self._clocks()

    def sampler(self, function: Callable) -> Callable:
        """`function`, its seconds counted as sampling."""

        def timed(*arguments, **options):
            start = time.perf_counter()
            result = function(*arguments, **options)
            self.sampling += time.perf_counter() - start
            return result

        return timed

    def _clocks(self) -> tuple[float, float, float]:
        return time.perf_counter(), time.process_time(), self.sampling


def _run_side(side: str, config: RunConfig, connection: Connection) -> None:
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    torch.set_num_threads(1)
    pace = Pace(connection)
    with tempfile.TemporaryDirectory() as scratch:
        (run_ours if side == "ours" else run_trl)(config, Path(scratch), pace)


def run_ours(config: RunConfig, folder: Path, pace: Pace) -> None:
    TransformersEngine.generate = pace.sampler(TransformersEngine.generate)
    train(config, root=folder, checkpoint_seconds=math.inf, on_update=lambda _: pace.after_update())


def run_trl(config: RunConfig, folder: Path, pace: Pace) -> None:
    trainer = grpo_trainer(config, folder, pace.after_update)
    trainer._generate_single_turn = pace.sampler(trainer._generate_single_turn)
    trainer.train()
