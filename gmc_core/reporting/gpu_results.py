"""The runs of a GPU tier, one by one: best, last and collapse step. `python -m gmc_core.reporting.gpu_results NAME`."""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gmc_core.reporting.markdown import markdown_table
from gmc_core.reporting.run_records import Runs, load_runs

if TYPE_CHECKING:
    import pandas as pd


def with_fifo_delay(tables: Runs) -> Runs:
    """The same tables, the delay of a live run in first-in, first-out order being the age of the rollouts that the
    first update of a batch learns from: the last one's, `max_staleness`, is `updates_per_batch` - 1 more.

    In its config such a run has delay 0: its schedule has no other. The comparisons of `run_comparisons` go by delay.
    """
    live = tables.runs["schedule"] == "bounded_staleness"
    first = tables.runs["max_staleness"] - tables.runs["updates_per_batch"] + 1
    delay = tables.runs["delay"].where(~live, first)
    return dataclasses.replace(tables, runs=tables.runs.assign(delay=delay))


def at_step_size(tables: Runs, learning_rate: float) -> Runs:
    """The runs of a tier at one step size, each with its delay: what figure 5 is drawn from.

    ValueError when there is none.
    """
    tables = with_fifo_delay(tables)
    runs = tables.runs[tables.runs["learning_rate"] == learning_rate]
    if runs.empty:
        raise ValueError(
            f"no run of {tables.name} has learning_rate {learning_rate:g}; there are "
            f"{', '.join(f'{rate:g}' for rate in sorted(set(tables.runs['learning_rate'])))}"
        )
    kept = {
        name: table[table["run_id"].isin(runs["run_id"])]
        for name, table in (("metrics", tables.metrics), ("evaluations", tables.evaluations))
    }
    return dataclasses.replace(tables, runs=runs, **kept)


def tier_results(tables: Runs) -> pd.DataFrame:
    """One row per run: estimator, delay, learning rate, seed; accuracy before training, the best with its update, the
    last; and `collapse_update`, the evaluation from which on it is below half of its best so far, to the end (NaN for a
    run that did not collapse).
    """
    import pandas as pd

    runs = with_fifo_delay(tables).runs
    rows = []
    for run in runs.itertuples():
        found = tables.evaluations[tables.evaluations["run_id"] == run.run_id].sort_values("update", kind="stable")
        updates, accuracy = found["update"].tolist(), found["accuracy"].tolist()
        best, collapse = 0.0, math.nan
        for update, value in zip(updates, accuracy, strict=True):
            best = max(best, value)
            if value >= 0.5 * best:
                collapse = math.nan
            elif math.isnan(collapse):
                collapse = update
        rows.append(
            {
                "estimator": run.estimator,
                "delay": run.delay,
                "learning_rate": run.learning_rate,
                "seed": run.seed,
                "initial": accuracy[0],
                "best": max(accuracy),
                "best_update": updates[accuracy.index(max(accuracy))],
                "last": accuracy[-1],
                "collapse_update": collapse,
            }
        )
    return pd.DataFrame(rows)


def results_markdown(tables: Runs) -> str:
    """`tier_results` as a table, by delay, method and step size."""
    ordered = tier_results(tables).sort_values(["delay", "estimator", "learning_rate", "seed"], kind="stable")
    rows = [
        (
            str(row.delay), row.estimator, f"{row.learning_rate:g}", str(row.seed), f"{row.initial:.3f}",
            f"{row.best:.3f} at {row.best_update}", f"{row.last:.3f}",
            "-" if math.isnan(row.collapse_update) else str(int(row.collapse_update)),
        )
        for row in ordered.itertuples()
    ]  # fmt: skip
    return markdown_table(("delay", "method", "step size", "seed", "before", "best", "last", "collapsed at"), rows)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m gmc_core.reporting.gpu_results", description=__doc__.split(":")[0])
    parser.add_argument("experiment", help="of live runs in first-in, first-out order, e.g. gpu_night")
    try:
        tables = load_runs(parser.parse_args(arguments).experiment, allow_partial=True)
    except FileNotFoundError as error:
        print(f"gpu_results: {error}", file=sys.stderr)
        return 1
    print(results_markdown(tables), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
