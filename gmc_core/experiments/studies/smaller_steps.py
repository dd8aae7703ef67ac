"""Smaller steps from the warm starts on which a step size tuned elsewhere lost runs."""

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

MODELS = ("data/warm_starts/weak", "data/warm_starts/strong")
DIVISORS = (1, 2, 4)


def runs(step_sizes: StepSizes) -> tuple[RunConfig, ...]:
    configs = []
    for model in MODELS:
        for name in FIVE:
            config = at_tuned(AT_STUDY_DELAY, name, step_sizes, model=model)
            configs += [config.replace(learning_rate=round(config.learning_rate / divisor, 4)) for divisor in DIVISORS]
    return study_runs(configs, FRESH_SEEDS)


SMALLER_STEPS = Experiment(
    name="smaller_steps",
    version=1,
    question="From the weak and the strong start, is a method that loses runs a bad one or only too fast?",
    protocol=fill(f"""\
# Protocol: smaller_steps, version 1 (written 2026-11-30, before the runs)

Question: from the weak and the strong start, is a method that loses runs a bad one or only too fast? In
`starting_accuracy`, at the step sizes tuned from the start of `main`, gmc lost 9 of ten runs there, snis all ten, the
other three methods none. A step size that suits one start need not suit another, so the order seen there may be one of
step sizes.

- Setting of `main` at delay {STUDY_DELAY}, seeds {", ".join(map(str, FRESH_SEEDS))}; methods {", ".join(FIVE)}, also
  those that lost none: all get the same choice.
- Warm starts: weak and strong. Step sizes: that which `main_tuning` chose for the method (these are the runs of
  `starting_accuracy`, known when this was written), a half and a quarter of it.
- Read per start and method: runs lost at each step size; the best step size of the three by mean area under the curve,
  and the area there. That choice is made on the runs that are shown, for every method alike.
- What would count for the methods that lost runs: a step size at which they lose no more than one of five and have at
  least the area of tic_truncate at its own best one. Anything else counts against them, at these starts.

{DEFINITIONS}"""),
    runs=runs,
    tuning="main_tuning",
)
