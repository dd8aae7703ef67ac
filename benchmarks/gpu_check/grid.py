"""Part `grid`: a Qwen3 of 9 M parameters is warm-started on the running sums, then trained at several delays.

Six rules, three delays, three seeds at one step size; several runs share the GPU, each in a process of its own. The
number of updates is what the time left allows, by the pace of a pilot in every process at once. One step size and
few updates: this says that staleness acts on a GPU as it does in the committed records, it ranks nothing.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import statistics
import tempfile
import time
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_check.check import NO_TIME, Check
from benchmarks.gpu_check.runner import start_method
from gmc_core import RunConfig, train
from gmc_core.rollouts.tiny_qwen3 import tiny_qwen3
from gmc_core.rollouts.warm_start import save_policy, train_warm_start

ESTIMATORS = ("gmc", "tic_truncate", "tic_mask", "snis", "is", "ppo_clip")
EVALUATIONS = 5  # along a run
LEARNING_RATE = 0.1  # half of the reference, for a wider model; not tuned
MARGIN = 1.25  # runs are slower than the pilot while responses differ, and some wait for the last
MOST_PROCESSES = 8


class OutOfTime(RuntimeError):
    """The time of this part ended in the middle of a run."""


def measure(check: Check) -> None:
    size = check.size
    started = time.monotonic()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:  # a run may be writing at the end
        model = tiny_qwen3(size.warm_start.seed, **size.grid_model).to(check.device)
        policy, measured = train_warm_start(size.warm_start, model=model, progress=lambda _: None)
        folder = Path(scratch) / "model"
        save_policy(policy, folder, size.warm_start, measured)
        check.report(parameters=model.num_parameters(), warm_start=measured | {"seconds": time.monotonic() - started})
        del model, policy
        check.clean()
        _runs(check, base_config(check, folder), Path(scratch))


def base_config(check: Check, model: Path) -> RunConfig:
    """The reference setting on this model and device, at a smaller step."""
    return RunConfig(
        model=str(model),
        device=check.device.type,
        learning_rate=LEARNING_RATE,
        task_options={"digits": check.size.warm_start.digits},
        evaluation_prompts=check.size.grid_evaluation_prompts,
    )


def configs(check: Check, base: RunConfig, updates: int) -> list[RunConfig]:
    """All runs, a whole grid of one seed before the next."""
    every = max(1, updates // EVALUATIONS)
    return [
        base.replace(estimator=estimator, delay=delay, seed=seed, updates=updates, evaluation_every=every)
        for seed in check.size.grid_seeds
        for delay in check.size.grid_delays
        for estimator in ESTIMATORS
    ]


def affordable_updates(seconds: float, update_s: float, other_s: float, *, rounds: int, most: int, fewest: int) -> int:
    """Updates of a run such that `rounds` runs, one after the other, end within `seconds`.

    `update_s` seconds an update and `other_s` for the rest of a run, with all processes at work.
    """
    return max(fewest, min(most, int((seconds / MARGIN / rounds - other_s) / update_s)))


def _runs(check: Check, base: RunConfig, scratch: Path) -> None:
    size = check.size
    count = len(configs(check, base, 1))
    processes = max(1, min(MOST_PROCESSES, (os.cpu_count() or 1) // 2, count)) if check.device.type == "cuda" else 1
    pool = ProcessPoolExecutor(
        processes,
        mp_context=multiprocessing.get_context(start_method()),
        initializer=_join_group,
        initargs=(os.getpgrp(),),
    )
    pilot = base.replace(updates=size.grid_pilot, evaluation_every=size.grid_pilot)
    for turn in range(2):  # the first pays for what a process pays once
        seeds = range(100 + turn * processes, 100 + (turn + 1) * processes)
        pilots = [pool.submit(run, pilot.replace(seed=seed), scratch, math.inf) for seed in seeds]
        measured = [future.result() for future in pilots]
    update_s, other_s = (statistics.mean(row[name] for row in measured) for name in ("update_s", "other_s"))
    most, fewest = size.grid_updates
    updates = affordable_updates(
        check.left, update_s, other_s, rounds=math.ceil(count / processes), most=most, fewest=fewest
    )
    check.report(
        processes=processes,
        pilot={"update_s": update_s, "other_s": other_s},
        updates=updates,
        learning_rate=base.learning_rate,
        gradient_clip=base.gradient_clip,
        optimizer=base.optimizer,
    )
    deadline = time.time() + check.left - 3.0
    running = {pool.submit(run, config, scratch, deadline): config for config in configs(check, base, updates)}
    rows: list[dict[str, Any]] = []
    while running:
        done, _ = wait(running, timeout=max(0.0, check.left), return_when=FIRST_COMPLETED)
        if not done:
            break
        for future in done:
            _keep(check, running.pop(future), future, rows)
        check.report(runs=sorted(rows, key=lambda row: (row["estimator"], row["delay"], row["seed"])))
    check.report(left_out=[f"{_name(config)}: {NO_TIME}" for config in running.values()], table=table(rows))
    pool.shutdown(wait=False, cancel_futures=True)


def _keep(check: Check, config: RunConfig, future: Future, rows: list[dict[str, Any]]) -> None:
    def finish() -> dict[str, Any]:
        row = future.result()
        rows.append({"estimator": config.estimator, "delay": config.delay, "seed": config.seed} | row)
        return row

    try:
        future.result()
    except OutOfTime as late:
        check.report(**{f"run_{_name(config)}": {"left_out": str(late)}})
    except Exception:
        check.row(f"run_{_name(config)}", finish)
    else:
        finish()


def _name(config: RunConfig) -> str:
    return f"{config.estimator}_delay{config.delay}_seed{config.seed}"


def table(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over the seeds that were run, rule by rule and delay by delay."""
    cells: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in rows:
        cells.setdefault((row["estimator"], row["delay"]), []).append(row)
    return [
        {
            "estimator": estimator,
            "delay": delay,
            "seeds": len(cell),
            "final_accuracy": statistics.mean(row["final_accuracy"] for row in cell),
            "area_under_curve": statistics.mean(row["area_under_curve"] for row in cell),
        }
        for (estimator, delay), cell in sorted(cells.items())
    ]


# --- in the processes of the runs -------------------------------------------------------------------------------------


def _join_group(group: int) -> None:
    """Whoever ends the part's process group ends its runs as well."""
    torch.set_num_threads(1)
    if hasattr(os, "setpgid"):
        os.setpgid(0, group)


def run(config: RunConfig, scratch: Path, deadline: float) -> dict[str, Any]:
    """One run: what its summary says, its accuracies, seconds an update and those of the rest.

    OutOfTime when the clock passes `deadline`.
    """
    started = time.time()
    if started > deadline:
        raise OutOfTime(NO_TIME)
    ends: list[float] = []  # of the updates

    def on_update(row: dict[str, float]) -> None:
        ends.append(time.time())
        if ends[-1] > deadline:
            raise OutOfTime(f"{NO_TIME} after {row['update']:.0f} of {config.updates} updates")

    record = train(config, root=scratch / "runs", checkpoint_seconds=math.inf, on_update=on_update)
    update_s = (ends[-1] - ends[0]) / (len(ends) - 1)  # evaluations in between are in it, the first update is not
    names = ("final_accuracy", "area_under_curve", "best_accuracy", "initial_accuracy", "collapsed")
    return {
        **{name: record.summary[name] for name in names},
        "accuracies": [[row["update"], row["accuracy"]] for row in record.evaluations],
        "update_s": update_s,
        "other_s": time.time() - started - update_s * len(ends),
    }
