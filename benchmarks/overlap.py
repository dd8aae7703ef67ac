"""Overlap of generation and learning in the live loop: asynchronous beside synchronous, in balance, on two cores.

The learner has a process and a thread, the rollout worker another of each. The settings were chosen so that a batch
takes both about the same time when they take turns, which is where overlap can gain most: at best a factor of two. The
step size is next to nothing, so that every update has the same work. The pace leaves out the first updates of a run and
the last k (gmc_core/reporting/timelines.py).

This needs two free cores: whatever else computes there falls on the asynchronous runs twice. The load average at the
start is in the first note of each engine.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gmc_core import RunConfig, train
from gmc_core.reporting.timelines import Pace, RunTimeline, pace

BASE = RunConfig(
    schedule="bounded_staleness",
    workers="process",
    learning_rate=1e-6,
    updates=20,
    evaluation_every=20,
    evaluation_prompts=8,
)
SKIP = 4  # updates at the start of a run
TURNS = 3
SETTINGS: dict[str, dict[str, Any]] = {  # engine -> what balances it with the learner
    "transformers": {"prompts_per_update": 32, "group_size": 4},
    "vllm": {
        "prompts_per_update": 16,
        "group_size": 16,
        "micro_batch_tokens": 2048,  # the learner passes over the batch twice, as with a model of real size
        "engine_options": {"kv_cache_memory_bytes": 1 << 28},
    },
}
MODES: dict[str, dict[str, Any]] = {  # the first is synchronous
    "k = 0": {"max_staleness": 0},
    "k = 1": {"max_staleness": 1},
    "k = 1, updates in flight": {"max_staleness": 1, "in_flight_updates": True},
    "k = 4, updates in flight": {"max_staleness": 4, "in_flight_updates": True},
}


def measure() -> list[dict]:
    """For each engine: times of the synchronous loop, then speed-up and overlap of each asynchronous one."""
    return [row for engine in SETTINGS if engine == "transformers" or find_spec("vllm") for row in _engine(engine)]


def _engine(engine: str) -> list[dict]:
    load = os.getloadavg()[0]
    turns = [{mode: _pace(engine, changes) for mode, changes in MODES.items()} for _ in range(TURNS)]
    first, *others = MODES
    sync = [turn[first] for turn in turns]
    config = BASE.replace(engine=engine, **SETTINGS[engine])
    size = f"{config.prompts_per_update} prompts x {config.group_size} rollouts"
    stages = f"generates {_median(sync, 'generate') * 1e3:.0f} ms, learns {_median(sync, 'learn') * 1e3:.0f} ms"
    rows = [
        {
            "what": f"{engine}, {first}, {size}",
            "value": _median(sync, "wall") * 1e3,
            "unit": "ms / update",
            "note": f"{stages}; median of {TURNS} runs; load average {load:.1f}",
        }
    ]
    for mode in others:
        paces = [turn[mode] for turn in turns]
        faster = [turn[first].wall / turn[mode].wall for turn in turns]
        attained = [max(turn[first].generate, turn[first].learn) / turn[mode].wall for turn in turns]
        rows += [
            _row(f"{engine}, {mode}: speed-up", faster, "x", f"{_median(paces, 'wall') * 1e3:.0f} ms / update"),
            _row(
                f"{engine}, {mode}: overlap efficiency",
                [each.efficiency for each in paces],
                "",
                "max(generation, learning) / wall, all of this run",
            ),
            _row(f"{engine}, {mode}: attained", attained, "", "max(generation, learning) of k = 0 / wall"),
        ]
    return rows


def _pace(engine: str, changes: dict[str, Any]) -> Pace:
    config = BASE.replace(engine=engine, **SETTINGS[engine] | changes)
    with tempfile.TemporaryDirectory() as scratch:
        record = train(config, root=Path(scratch), checkpoint_seconds=1e9)
        return pace(RunTimeline.read(record.path).table(), skip=SKIP, rest=config.max_staleness)


def _median(paces: list[Pace], name: str) -> float:
    return statistics.median(getattr(each, name) for each in paces)


def _row(what: str, values: list[float], unit: str, note: str) -> dict:
    spread = f"{min(values):.2f} to {max(values):.2f}"
    return {"what": what, "value": statistics.median(values), "unit": unit, "note": f"{spread}; {note}"}
