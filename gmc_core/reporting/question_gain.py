"""What a run changed on every question of its task, from the rows of `experiments/question_probing.py`.

`python -m gmc_core.reporting.question_gain smollm2_addition` prints it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gmc_core.reporting.run_records import Runs, load_runs
from gmc_core.reporting.statistics import Interval, bootstrap_interval, paired_difference


@dataclass(frozen=True)
class QuestionGain:
    """Mean accuracy `before` and `after` a run, and the paired `gain`, with intervals over the questions.

    `better`, `worse`: questions that were answered right more often, or less often, after it. `samples` of each.
    """

    before: Interval
    after: Interval
    gain: Interval
    questions: int
    better: int
    worse: int
    samples: int

    def __str__(self) -> str:
        def text(value: Interval, sign: str = "") -> str:
            return f"{value.estimate:{sign}.3f} [{value.low:{sign}.3f}, {value.high:{sign}.3f}]"

        return (
            f"accuracy {text(self.before)} before, {text(self.after)} after, paired gain {text(self.gain, '+')}; "
            f"{self.better} questions better, {self.worse} worse (of {self.questions}, {self.samples} responses each)"
        )


def question_gain(tables: Runs, run_id: str, generator: np.random.Generator) -> QuestionGain:
    """Of one run in the tables. ValueError for a run whose questions were not asked before and after."""
    rows = tables.probes if tables.probes is None else tables.probes[tables.probes["run_id"] == run_id]
    if rows is None or "question" not in rows or rows["update"].nunique() != 2:
        raise ValueError(f"run {run_id} of {tables.name} has no questions that were asked before and after it")
    first, last = rows["update"].min(), rows["update"].max()
    before, after = (rows[rows["update"] == update].set_index("question") for update in (first, last))
    after = after.loc[before.index]
    share_before, share_after = (
        each["correct"].to_numpy(dtype=float) / each["samples"].to_numpy(dtype=float) for each in (before, after)
    )
    return QuestionGain(
        before=bootstrap_interval(share_before, generator),
        after=bootstrap_interval(share_after, generator),
        gain=paired_difference(share_after, share_before, generator),
        questions=len(before),
        better=int((share_after > share_before).sum()),
        worse=int((share_after < share_before).sum()),
        samples=int(before["samples"].iloc[0]),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m gmc_core.reporting.question_gain", description=__doc__.split("\n")[0]
    )
    parser.add_argument("experiment")
    options = parser.parse_args(arguments)
    try:
        tables = load_runs(options.experiment)
        for run_id in tables.runs["run_id"]:
            print(f"{run_id}: {question_gain(tables, run_id, np.random.default_rng(0))}")
    except (FileNotFoundError, ValueError) as error:
        print(f"question_gain: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
