"""Run the missing runs of an experiment, several processes side by side, and compact them into its tables.

A run belongs to one process at a time, so any number of these may work on one experiment. A run that fails is reported
at the end; the others go on. Each process computes on one thread, which is fastest for a model of this size.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

from gmc_core import paths
from gmc_core.experiments.grids import Experiment
from gmc_core.reporting.run_records import Runs, load_runs, write_tables
from gmc_core.training.run_config import RunConfig
from gmc_core.training.run_directory import RunClaimedError, RunRecord


@dataclass
class GridReport:
    """What happened: `records` of finished runs in the order of the grid, `failed` run ids with their errors, `claimed`
    run ids that other processes are still working on."""

    experiment: Experiment
    records: list[RunRecord] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    claimed: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        return len(self.records) == len(self.experiment.configs)


def run_experiment(
    experiment: Experiment,
    *,
    processes: int = 2,
    build_root: Path | None = None,
    report: Callable[[str], None] | None = None,
) -> GridReport:
    """Finish every run of the experiment (finished records are reused, interrupted ones resume).

    `report` receives one line per finished run, with an estimate of the time left (default: stderr).
    """
    report = report or (lambda line: print(line, file=sys.stderr, flush=True))
    root = (build_root or paths.BUILD_RUNS) / experiment.name
    result, done, started = GridReport(experiment), {}, time.perf_counter()
    total = len(experiment.configs)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with ProcessPoolExecutor(min(processes, total), mp_context=get_context("spawn"), initializer=_one_thread) as pool:
        futures = {pool.submit(_train, config, root): config for config in experiment.configs}
        for count, future in enumerate(as_completed(futures), start=1):
            config = futures[future]
            try:
                done[config.run_id] = record = future.result()
                outcome = f"final accuracy {record.summary['final_accuracy']:.3f}"
            except RunClaimedError:
                result.claimed.append(config.run_id)
                outcome = "left to another process"
            except Exception as error:
                result.failed[config.run_id] = f"{type(error).__name__}: {error}"
                outcome = f"FAILED ({result.failed[config.run_id]})"
            left = (time.perf_counter() - started) / count * (total - count)
            report(f"[{count}/{total}] {config.run_id}: {outcome}; about {left / 60:.1f} min left")
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
) -> Runs:
    """The tables of the experiment: as committed if they are this version's, else (or with `recompute`) from its runs.

    Raises RuntimeError, naming the runs, when some could not be finished; finished runs are kept.
    """
    if not recompute:
        try:
            tables = load_runs(experiment.name, root=tables_root)
            if set(tables.runs["run_id"]) == {config.run_id for config in experiment.configs}:
                return tables
        except FileNotFoundError:
            pass
    outcome = run_experiment(experiment, processes=processes, build_root=build_root, report=report)
    if not outcome.complete:
        problems = [f"{run_id}: {error}" for run_id, error in outcome.failed.items()]
        problems += [f"{run_id}: claimed by another process" for run_id in outcome.claimed]
        raise RuntimeError(
            f"{len(problems)} of {len(experiment.configs)} runs of {experiment.name} are not finished (finished ones "
            "are kept; run again to go on):\n  " + "\n  ".join(problems)
        )
    write_tables(experiment.name, experiment.version, experiment.protocol, outcome.records, root=tables_root)
    return load_runs(experiment.name, root=tables_root)


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def _train(config: RunConfig, root: Path) -> RunRecord:
    from gmc_core.training.loop import train

    return train(config, root=root)
