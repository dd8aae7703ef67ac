"""(f) Starting accuracy: warm starts that know less or more."""

from __future__ import annotations

from gmc_core.experiments.experiment import Experiment, StepSizes
from gmc_core.experiments.protocols import fill
from gmc_core.experiments.studies.common import (
    AT_STUDY_DELAY,
    DEFINITIONS,
    FIVE,
    FRESH_SEEDS,
    STUDY_DELAY,
    at_tuned,
    study_runs,
)
from gmc_core.training.run_config import RunConfig

MODELS = ("data/warm_starts/weak", "data/tiny_qwen3", "data/warm_starts/strong")


def runs(step_sizes: StepSizes) -> tuple[RunConfig, ...]:
    return study_runs(
        (at_tuned(AT_STUDY_DELAY, name, step_sizes, model=model) for model in MODELS for name in FIVE),
        FRESH_SEEDS,
    )


STARTING_ACCURACY = Experiment(
    name="starting_accuracy",
    version=1,
    question="Does the order of the methods depend on how good the policy is at the start?",
    protocol=fill(f"""\
# Protocol: starting_accuracy, version 1 (written 2026-11-30, before the runs)

Question: does the order of the methods depend on how good the policy is at the start?

- Setting of `main` at delay {STUDY_DELAY}, seeds {", ".join(map(str, FRESH_SEEDS))}; methods {", ".join(FIVE)}.
- Three warm starts on six digits: weak, the one of `main`, strong; their sampled accuracies stand in
  `data/warm_starts/README.md`. Chance level for a model that knows the form is 0.10.
- Step size: that which `main_tuning` chose for the method at this delay, from every start.

{DEFINITIONS}"""),
    runs=runs,
    tuning="main_tuning",
)
