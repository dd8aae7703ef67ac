"""`python -m gmc_core.experiments [--only NAME ...]`: recompute the committed tables (`make experiments` calls it)."""

from __future__ import annotations

import argparse
import os

from gmc_core.experiments.grids import EXPERIMENTS, get_experiment
from gmc_core.experiments.run_grid import experiment_tables


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m gmc_core.experiments", description=__doc__)
    parser.add_argument("--only", nargs="*", metavar="NAME", help="experiments to run (default: all but smoke)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="runs side by side, one thread each")
    parser.add_argument("--list", action="store_true", help="name the experiments and stop")
    arguments = parser.parse_args(argv)
    if arguments.list:
        for experiment in EXPERIMENTS.values():
            print(f"{experiment.name:20} {len(experiment.configs):4} runs  {experiment.question}")
        return 0
    names = arguments.only or [name for name in EXPERIMENTS if name != "smoke"]
    try:
        experiments = [get_experiment(name) for name in names]
    except ValueError as error:
        parser.error(str(error))
    for experiment in experiments:
        tables = experiment_tables(experiment, recompute=True, processes=arguments.processes)
        print(f"{experiment.name}: {len(tables.runs)} runs, tables {tables.data_hash}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
