"""(d) The threshold epsilon of the four rules that have one."""

from __future__ import annotations

from gmc_core.experiments.experiment import Experiment, StepSizes
from gmc_core.experiments.protocols import fill
from gmc_core.experiments.studies.common import (
    AT_STUDY_DELAY,
    DEFINITIONS,
    FRESH_SEEDS,
    STUDY_DELAY,
    at_tuned,
    study_runs,
)
from gmc_core.training.run_config import RunConfig

METHODS = ("gmc", "tic_truncate", "tic_mask", "water_filling")
EPSILONS = (0.0, 0.1, 0.2, 0.5, 1.0, 3.0)
DEFAULT = 0.2  # left to the estimator, so that these runs are those of `main`


def runs(step_sizes: StepSizes) -> tuple[RunConfig, ...]:
    own = [at_tuned(AT_STUDY_DELAY, name, step_sizes) for name in METHODS]
    others = [epsilon for epsilon in EPSILONS if epsilon != DEFAULT]
    return study_runs(
        own + [config.replace(estimator_options={"epsilon": epsilon}) for epsilon in others for config in own],
        FRESH_SEEDS,
    )


THRESHOLD = Experiment(
    name="threshold",
    version=1,
    question="How much does the threshold of each capping rule matter?",
    protocol=fill(f"""\
# Protocol: threshold, version 1 (written 2026-11-30, before the runs)

Question: how much does the threshold c = 1 + epsilon of each capping rule matter? A large epsilon is full importance
sampling for all four; epsilon = 0 caps at the on-policy mass (GMC is then close to self-normalised importance sampling)
or at ratio 1.

- Setting of `main` at delay {STUDY_DELAY}, seeds {", ".join(map(str, FRESH_SEEDS))}; methods {", ".join(METHODS)}.
- epsilon {", ".join(f"{epsilon:g}" for epsilon in EPSILONS)}.
- Step size: that which `main_tuning` chose for the method at this delay with epsilon 0.2, for every epsilon. A smaller
  epsilon makes the mean weight smaller, so a difference may be one of effective step size; mean weights are reported.

{DEFINITIONS}"""),
    runs=runs,
    tuning="main_tuning",
)
