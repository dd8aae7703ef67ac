"""Run the missing runs of an experiment, several processes side by side, and compact them into its tables.

A run belongs to one process at a time, so any number of these may work on one experiment. A run that fails is reported
at the end; the others go on. Each process computes on one thread, which is fastest for a model of this size. A run that
another experiment has finished is copied from there: studies share runs with the main grid.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path

from gmc_core import paths
from gmc_core.experiments.experiment import Experiment, Probe
from gmc_core.reporting.run_records import Runs, load_runs, write_tables
from gmc_core.reporting.timelines import RunTimeline
from gmc_core.rollouts.remembered import RolloutMemory
from gmc_core.training.run_config import RunConfig
from gmc_core.training.run_directory import DamagedRecordError, RunClaimedError, RunRecord

MEMORY = RolloutMemory()  # of a worker process: its runs with one seed sample their initial policy once


@dataclass
class GridReport:
    """What happened: `records` of finished runs in the order of the grid, `failed` run ids with their errors, `claimed`
    run ids that other processes are still working on, `left` run ids for which there was no time."""

    experiment: Experiment
    records: list[RunRecord] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    claimed: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        return len(self.records) == len(self.experiment.configs)

    def problems(self) -> list[str]:
        """One line per reason why the experiment is not complete."""
        lines = [f"{run_id}: {error}" for run_id, error in self.failed.items()]
        lines += [f"{run_id}: claimed by another process" for run_id in self.claimed]
        return lines + ([f"{len(self.left)} runs for which there was no time"] if self.left else [])


def run_experiment(
    experiment: Experiment,
    *,
    processes: int = 2,
    build_root: Path | None = None,
    report: Callable[[str], None] | None = None,
    deadline: float | None = None,
) -> GridReport:
    """Finish every run of the experiment (finished records are reused, interrupted ones resume).

    `report` receives one line per finished run, with an estimate of the time left (default: stderr). `deadline`: no run
    is started after this time of `time.monotonic()`; those under way are finished, and finished ones are read.
    """
    report = report or (lambda line: print(line, file=sys.stderr, flush=True))
    root = (build_root or paths.BUILD_RUNS) / experiment.name
    on_gpu = any(config.device != "cpu" for config in experiment.configs)
    processes = 1 if experiment.timed or on_gpu else processes  # of a clock's reading, or of a GPU, a run takes all
    result, done, started = GridReport(experiment), {}, time.perf_counter()
    total, fresh = len(experiment.configs), 0

    def finished(config: RunConfig) -> bool:
        return (root / config.run_id / "summary.json").exists()

    waiting = sorted(
        experiment.configs, key=lambda config: not finished(config)
    )  # what is there first: it costs nothing
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with ProcessPoolExecutor(
        min(processes, total), mp_context=get_context("spawn"), initializer=_start_worker, initargs=(os.getpid(),)
    ) as pool:
        running: dict[Future, RunConfig] = {}
        while waiting or running:
            while waiting and len(running) < processes:
                if deadline and time.monotonic() >= deadline and not finished(waiting[0]):
                    break
                config = waiting.pop(0)
                running[pool.submit(_train, config, root, experiment.probe)] = config
            if not running:
                break  # no time for what is waiting
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                config = running.pop(future)
                try:
                    done[config.run_id], new = future.result()
                    fresh += new
                    outcome = f"final accuracy {done[config.run_id].summary['final_accuracy']:.3f}"
                except RunClaimedError:
                    result.claimed.append(config.run_id)
                    outcome = "left to another process"
                except Exception as error:
                    result.failed[config.run_id] = f"{type(error).__name__}: {error}"
                    outcome = f"FAILED ({result.failed[config.run_id]})"
                settled = total - len(waiting) - len(running)
                rate = (time.perf_counter() - started) / max(fresh, 1)
                minutes = rate * (total - settled) / 60
                report(f"[{settled}/{total}] {config.run_id}: {outcome}; about {minutes:.1f} min left")
    result.left = [config.run_id for config in waiting]
    result.records = [done[config.run_id] for config in experiment.configs if config.run_id in done]
    return result


def experiment_tables(
    experiment: Experiment,
    *,
    recompute: bool = False,
    processes: int = 2,
    tables_root: Path | None = None,
    build_root: Path | None = None,
    report: Callable[[str], None] | None = None,
    deadline: float | None = None,
) -> Runs:
    """The tables of the experiment: as committed if they hold its runs, else (or with `recompute`) from its runs.

    Runs in tables that are not complete yet are kept, whatever `recompute` says, and only the others are computed: a
    large experiment grows over several sessions and machines, each of which commits what it has.
    Raises RuntimeError, naming the runs, when some could not be finished; the tables then hold the finished ones.
    """
    wanted = {config.run_id for config in experiment.configs}
    try:
        tables = load_runs(experiment.name, root=tables_root, allow_partial=True)
    except FileNotFoundError:
        tables = None
    except DamagedRecordError:
        if not recompute:
            raise
        tables = None
    if tables is not None and not recompute and tables.complete and set(tables.runs["run_id"]) == wanted:
        return tables
    kept = tables if tables is not None and not tables.complete and tables.version == experiment.version else None
    known = set(kept.runs["run_id"]) & wanted if kept is not None else set()
    missing = tuple(config for config in experiment.configs if config.run_id not in known)
    outcome = GridReport(experiment)
    if missing:
        outcome = run_experiment(
            replace(experiment, runs=missing, tuning=None),
            processes=processes,
            build_root=build_root,
            report=report,
            deadline=deadline,
        )
    if outcome.records:
        probes = None
        if experiment.probe is not None:
            probes = {record.config.run_id: experiment.probe.rows(record.path) for record in outcome.records}
        timelines = None
        if experiment.timed:
            timelines = {record.config.run_id: RunTimeline.read(record.path) for record in outcome.records}
        write_tables(
            experiment.name,
            experiment.version,
            experiment.protocol,
            outcome.records,
            probes=probes,
            timelines=timelines,
            keep_metrics=experiment.keep_metrics,
            earlier=kept,
            order=[config.run_id for config in experiment.configs],
            root=tables_root,
        )
    if len(known) + len(outcome.records) < len(wanted):
        raise RuntimeError(
            f"{len(wanted) - len(known) - len(outcome.records)} of {len(wanted)} runs of {experiment.name} are not "
            "finished (finished ones are kept; run again to go on):\n  " + "\n  ".join(outcome.problems())
        )
    return load_runs(experiment.name, root=tables_root)


def _start_worker(parent: int) -> None:
    """One thread, and an end with the parent: a killed parent must not leave workers that wait for ever."""
    import torch

    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, args=(parent,), daemon=True).start()


def _end_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)  # the run resumes from its last checkpoint


def finished_elsewhere(config: RunConfig, root: Path) -> Path | None:
    """The folder of this run in another experiment beside `root`, if it is finished there."""
    found = sorted(path.parent for path in root.parent.glob(f"*/{config.run_id}/summary.json"))
    return next((folder for folder in found if folder.parent != root), None)


def _train(config: RunConfig, root: Path, probe: Probe | None) -> tuple[RunRecord, bool]:
    """The record, and whether anything had to be computed for it."""
    from gmc_core.training.loop import train

    folder = root / config.run_id
    new = not (folder / "summary.json").exists()
    if probe is not None:
        return train(config, root=root, observe=probe.observer(folder), memory=MEMORY), new
    if not folder.exists() and (other := finished_elsewhere(config, root)) is not None:
        copy = root / f".{config.run_id}.copy-{os.getpid()}"
        shutil.copytree(other, copy)
        try:
            copy.rename(folder)  # whole or not at all
        except OSError:  # another process was faster
            shutil.rmtree(copy)
        new = False
    return train(config, root=root, memory=MEMORY), new
