"""What an experiment is: its runs as data, why these, and how the setting was chosen. Written before it is run."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from gmc_core.experiments.probing import ProbeSchedule
from gmc_core.experiments.question_probing import QuestionProbe
from gmc_core.experiments.snapshot_probing import SnapshotSchedule
from gmc_core.reporting.run_records import load_runs
from gmc_core.reporting.step_sizes import choose_step_sizes
from gmc_core.training.run_config import RunConfig

Probe = ProbeSchedule | SnapshotSchedule | QuestionProbe
StepSizes = Callable[[RunConfig], float]  # the tuned step size of a config's estimator, options and delay


@dataclass(frozen=True)
class Experiment:
    """A named, versioned set of runs.

    `runs`: the configs; or, for an experiment at tuned step sizes, a function that makes them from the step sizes that
    the committed tables of the experiment `tuning` choose, by a rule fixed in code. `protocol` is the text committed
    beside the results (question, choices, definitions). `probe` adds fidelity probes along the runs, a comparison of
    their last policy with its own snapshots, or every question of the task before and after.
    `keep_metrics=False` leaves the rows of every update out of the tables (tuning runs: only evaluations matter).
    `timed`: the clock is what is measured. Its live runs are made one after the other, on a machine that should be
    quiet, and only when the experiment is named; the tables keep their timelines and ledgers. The procedure can be
    repeated, the seconds cannot. `extra`: what it needs beyond the usual installation ("smollm2":
    requirements-smollm2.txt; "gpu": a GPU and vLLM); such an experiment, too, is only made when it is named.
    """

    name: str
    version: int
    question: str
    protocol: str
    runs: tuple[RunConfig, ...] | Callable[[StepSizes], tuple[RunConfig, ...]]
    tuning: str | None = None
    probe: Probe | None = None
    keep_metrics: bool = True
    timed: bool = False
    extra: str | None = None

    @cached_property
    def configs(self) -> tuple[RunConfig, ...]:
        """The runs, each once. FileNotFoundError if the tables of `tuning` are not there yet."""
        return self.configs_at(chosen_step_sizes(self.tuning) if self.tuning else placeholder)

    def configs_at(self, step_sizes: StepSizes) -> tuple[RunConfig, ...]:
        """The runs at other step sizes: how many there are and what they cost is known before any is tuned."""
        configs = self.runs(step_sizes) if callable(self.runs) else self.runs
        return tuple({config.run_id: config for config in configs}.values())


def placeholder(config: RunConfig) -> float:
    """Any step size, to count runs by."""
    return 0.1


def chosen_step_sizes(experiment: str, root: Path | None = None) -> StepSizes:
    """What the tuning tables choose, as a function that raises KeyError for what was not tuned.

    Raises: FileNotFoundError if there are no such tables.
    """
    by = ("estimator", "estimator_options")
    table = choose_step_sizes(load_runs(experiment, root=root).runs, by=by)
    chosen = {(row.estimator, row.estimator_options, row.delay): float(row.step_size) for row in table.itertuples()}

    def step_size(config: RunConfig) -> float:
        key = (config.estimator, json.dumps(config.estimator_options, sort_keys=True), config.delay)
        if key not in chosen:
            raise KeyError(f"{experiment} did not tune {key[0]} {key[1]} at delay {key[2]}")
        return chosen[key]

    return step_size


def staleness_grid(
    estimators: Sequence[str], delays: Sequence[int], seeds: Sequence[int], base: RunConfig
) -> tuple[RunConfig, ...]:
    """Every estimator x delay x seed, seeds outermost so that a first picture of everything comes early."""
    return tuple(
        base.replace(estimator=estimator, delay=delay, seed=seed)
        for seed in seeds
        for delay in delays
        for estimator in estimators
    )
