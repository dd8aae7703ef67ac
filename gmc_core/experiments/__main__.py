"""`python -m gmc_core.experiments [--only NAME ...]`: recompute the committed tables (`make experiments` calls it).

Runs are kept in build/runs as they finish, and interrupted ones resume exactly, so a large experiment can be computed
in several sessions (`--minutes` bounds one) and by several processes or terminals at once.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time

from gmc_core import paths
from gmc_core.experiments.cost import experiment_seconds
from gmc_core.experiments.experiment import Experiment, placeholder
from gmc_core.experiments.grids import EXPERIMENTS, get_experiment
from gmc_core.experiments.protocols import write_protocols
from gmc_core.experiments.run_grid import experiment_tables
from gmc_core.reporting.run_records import load_runs


def describe(experiment: Experiment) -> str:
    """One line: runs, estimated CPU time, how many are finished and where, what it waits for, question."""
    hours, unit = experiment_seconds(experiment) / 3600, "GPU" if experiment.extra == "gpu" else "CPU"
    try:
        configs = experiment.configs
        folder = paths.BUILD_RUNS / experiment.name
        finished = sum((folder / config.run_id / "summary.json").exists() for config in configs)
        state = f"{finished} in build/runs"
    except FileNotFoundError:
        configs, state = experiment.configs_at(placeholder), f"needs {experiment.tuning}"
    with contextlib.suppress(FileNotFoundError):
        state = f"{len(load_runs(experiment.name, allow_partial=True).runs)} in data/runs"
    return f"{experiment.name:18} {len(configs):4} runs {hours:5.2f} h {unit}  {state:20} {experiment.question}"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m gmc_core.experiments", description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--only",
        nargs="*",
        metavar="NAME",
        help="which ones (default: all but smoke, timed ones and those of extra models)",
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="runs side by side, one thread each")
    parser.add_argument("--minutes", type=float, help="start no run after this time; run again to go on")
    parser.add_argument("--list", action="store_true", help="runs, estimated CPU time and state of each; then stop")
    parser.add_argument(
        "--protocols", action="store_true", help="write the protocols of what is not run yet; then stop"
    )
    arguments = parser.parse_args(argv)
    if arguments.list:
        for experiment in EXPERIMENTS.values():
            print(describe(experiment))
        return 0
    if arguments.protocols:
        for path in write_protocols(EXPERIMENTS.values()):
            print(path.relative_to(paths.ROOT))
        return 0
    names = arguments.only or [
        name for name, found in EXPERIMENTS.items() if not (name == "smoke" or found.timed or found.extra)
    ]
    try:
        experiments = [get_experiment(name) for name in names]
    except ValueError as error:
        parser.error(str(error))
    deadline = None if arguments.minutes is None else time.monotonic() + 60 * arguments.minutes
    for experiment in experiments:
        try:
            tables = experiment_tables(experiment, recompute=True, processes=arguments.processes, deadline=deadline)
        except (FileNotFoundError, RuntimeError) as error:
            print(f"{experiment.name}: {error}", file=sys.stderr)
            return 1
        print(f"{experiment.name}: {len(tables.runs)} runs, tables {tables.data_hash}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
