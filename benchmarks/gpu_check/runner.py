"""The parts, one after the other, each in a process of its own with its share of the time; every finding kept at once.

A part that raises, hangs or kills its process (or the CUDA context in it) takes nothing else with it: what it reported
stays, the next one starts afresh.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.gpu_check.check import NO_TIME, Check
from benchmarks.gpu_check.sizes import SIZES

DONE, ERROR, CUT, LEFT_OUT = "done", "error", "cut", "left out"
READY = {"ready": True}  # a part's first word: its time runs from here
START_SECONDS = 90.0  # for a process and its imports


@dataclass(frozen=True)
class Part:
    """`module.function(check)`; `share`: seconds of eight minutes that it may take; `least`: fewer are not worth it.

    What a part does not use of its share goes to those behind it.
    """

    module: str
    share: float
    least: float
    function: str = "measure"


PARTS = {
    "device": Part("benchmarks.gpu_check.machine", 5, 1),
    "ceiling": Part("benchmarks.gpu_check.ceiling", 12, 5),
    "learner": Part("benchmarks.gpu_check.learner", 115, 20),
    "memory": Part("benchmarks.gpu_check.memory", 52, 20),
    "engine": Part("benchmarks.gpu_check.engine", 46, 20),
    "estimators": Part("benchmarks.gpu_check.estimators", 10, 4),
    "tests": Part("benchmarks.gpu_check.device_tests", 95, 20),
    "grid": Part("benchmarks.gpu_check.grid", 135, 45),
}


def run_parts(
    names: list[str], size: str, seconds: float, keep: Callable[[str, dict[str, Any]], None]
) -> dict[str, dict[str, Any]]:
    """Run these parts within `seconds` and return what each found; `keep(name, record)` is called at every change."""
    end = time.monotonic() + seconds
    found: dict[str, dict[str, Any]] = {}
    for index, name in enumerate(names):
        part, rest = PARTS[name], sum(PARTS[later].share for later in names[index:])
        left = end - time.monotonic()
        budget = left * part.share / rest
        record: dict[str, Any] = {"status": "running", "budget_s": round(budget, 1)}
        found[name] = record
        if budget < part.least:
            record |= {"status": LEFT_OUT, "why": f"{NO_TIME}: {budget:.0f} s, it takes {part.least:.0f} s at least"}
            keep(name, record)
            continue
        before = {other: findings for other, findings in found.items() if other != name}
        _run_part(part, size, budget, before, record, lambda name=name, record=record: keep(name, record))
        keep(name, record)
    return found


def start_method() -> str:
    """How parts, and what they start, become processes.

    Forks that have the imports behind them, where torch knows no CUDA; else fresh ones: CUDA survives no fork.
    """
    import torch

    forks = "forkserver" in multiprocessing.get_all_start_methods()
    return "forkserver" if forks and torch.version.cuda is None else "spawn"


def _run_part(
    part: Part, size: str, budget: float, before: Mapping[str, Any], record: dict[str, Any], keep: Callable[[], None]
) -> None:
    context = multiprocessing.get_context(start_method())
    if context.get_start_method() == "forkserver":
        context.set_forkserver_preload(["gmc_core", "transformers.models.qwen3.modeling_qwen3"])
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(there, part, size, budget, dict(before)))
    started = time.monotonic()
    process.start()
    there.close()  # so that the child's end is the end of the pipe
    try:
        record |= {"status": CUT, "why": f"{NO_TIME}: ended after {budget:.0f} s"}
        end = started + START_SECONDS
        while here.poll(max(0.0, end - time.monotonic())):
            try:
                findings = here.recv()
            except EOFError:
                process.join(10)
                record |= {"status": ERROR, "why": f"its process ended with exit code {process.exitcode}"}
                break
            if findings == READY:
                end = time.monotonic() + budget
                continue
            record |= findings
            if findings.get("status") == DONE:
                del record["why"]
            if "status" in findings:
                break
            keep()
        process.join(2)
    finally:
        _end(process)
        record["seconds"] = round(time.monotonic() - started, 1)


def _end(process: Any) -> None:
    """End the part's process and what it started: they are a process group of their own."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (AttributeError, ProcessLookupError, PermissionError):
        process.kill()
    process.join()


def _child(connection: Connection, part: Part, size: str, budget: float, found: Mapping[str, Any]) -> None:
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)
    try:
        import torch

        torch.set_num_threads(1)
        measure = getattr(importlib.import_module(part.module), part.function)
        connection.send(READY)
        check = Check(SIZES[size], budget, found, connection.send)
        measure(check)
    except Exception:
        connection.send({"status": ERROR, "why": traceback.format_exc()})
        return
    if check.failed:
        connection.send({"status": ERROR, "why": f"raised: {', '.join(check.failed)}"})
        return
    connection.send({"status": DONE})
