"""Smaller steps from the warm starts on which a step size tuned elsewhere lost runs."""

from __future__ import annotations

from gmc_core.experiments.experiment import Experiment, StepSizes
from gmc_core.experiments.protocols import fill
from gmc_core.experiments.studies import length, starting_accuracy
from gmc_core.experiments.studies.common import DEFINITIONS, FIVE, FRESH_SEEDS, STUDY_DELAY, with_smaller_step
from gmc_core.training.run_config import RunConfig

MODELS = ("data/warm_starts/weak", "data/warm_starts/strong", length.MODELS[24])
DIVISORS = (1, 2, 4)


def runs(step_sizes: StepSizes) -> tuple[RunConfig, ...]:
    """The runs of the two studies at the tuned step size, each followed by its twins at the smaller ones."""
    tuned = {}
    for config in (*starting_accuracy.runs(step_sizes), *length.runs(step_sizes)):
        key = config.model, config.estimator, config.seed
        if config.model in MODELS and config.learning_rate >= tuned.get(key, config).learning_rate:
            tuned[key] = config
    return tuple(with_smaller_step(config, divisor) for config in tuned.values() for divisor in DIVISORS)


SMALLER_STEPS = Experiment(
    name="smaller_steps",
    version=1,
    question="Where a step size tuned elsewhere lost runs: is the method a bad one or only too fast?",
    protocol=fill(f"""\
# Protocol: smaller_steps, version 1 (written 2026-11-30, before the runs)

Question: where a step size tuned elsewhere lost runs, is the method a bad one or only too fast? At the step sizes
tuned from the start of `main`, gmc lost 9 of ten runs from the weak and the strong start of `starting_accuracy` and
snis all ten, the other three methods none; in `length`, gmc and snis learnt nothing or lost what they had with
responses of 50 tokens, in both runs at the tuned step size and at half of it. A step size that suits one start need
not suit another, so the order seen there may be one of step sizes.

- Setting of `main` at delay {STUDY_DELAY}; methods {", ".join(FIVE)}, also those that lost none: all get the same
  choice.
- Warm starts: weak and strong with seeds {", ".join(map(str, FRESH_SEEDS))}, that of 24 digits with seeds 10 and 11
  (few: shown one by one).
- Step sizes: that which `main_tuning` chose for the method, a half and a quarter of it. Known when this was written
  are the runs of the two studies: those at the tuned step size, and for 24 digits at half of it.
- Read per start and method: runs lost at each step size; the best step size of the three by mean area under the curve,
  and the area there. That choice is made on the runs that are shown, for every method alike.
- What would count for the methods that lost runs: a step size at which they lose no more than one run of five (none of
  two) and have at least the area of tic_truncate at its own best one. Anything else counts against them, at these
  starts.

{DEFINITIONS}"""),
    runs=runs,
    tuning="main_tuning",
)
