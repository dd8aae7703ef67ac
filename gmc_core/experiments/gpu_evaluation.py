"""Benchmarks after a GPU tier: `python -m gmc_core.experiments.gpu_evaluation gpu_night`.

Every finished run of the tier is evaluated on the tier's benchmarks, with what it was trained with; an evaluation that
was interrupted goes on. The files lie in `build/runs/<tier>/benchmarks/`, the table is printed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gmc_core import paths
from gmc_core.reporting.evaluation import read_result
from gmc_core.reporting.evaluation_tables import results_table
from gmc_core.training.gpu_tiers import TIERS, Tier, evaluate_last
from gmc_core.training.loop import train


def evaluate_tier(tier: Tier, root: Path) -> list[Path]:
    """The files of all finished runs of the tier under `root`. FileNotFoundError when none is finished."""
    finished = [config for config in tier.runs if (root / config.run_id / "summary.json").exists()]
    if not finished:
        raise FileNotFoundError(
            f"no finished run of {tier.name} in {root}; `make experiments ONLY={tier.name}` makes them"
        )
    return [path for config in finished for path in evaluate_last(train(config, root=root), tier, root / "benchmarks")]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m gmc_core.experiments.gpu_evaluation", description=__doc__.split(":")[0]
    )
    parser.add_argument("tier", choices=[name for name, tier in TIERS.items() if tier.benchmarks])
    tier = TIERS[parser.parse_args(arguments).tier]
    try:
        files = evaluate_tier(tier, paths.BUILD_RUNS / tier.name)
    except FileNotFoundError as error:
        print(f"gpu_evaluation: {error}", file=sys.stderr)
        return 1
    print(results_table([read_result(path) for path in files], np.random.default_rng(0)), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
