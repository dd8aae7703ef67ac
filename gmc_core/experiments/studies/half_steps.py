"""Half of the tuned step size, from the start of `main`: what the score that tunes has its part in."""

from __future__ import annotations

from gmc_core.experiments.experiment import Experiment, StepSizes
from gmc_core.experiments.protocols import fill
from gmc_core.experiments.studies.common import (
    BASE,
    CORE,
    DEFINITIONS,
    FRESH_SEEDS,
    at_tuned,
    study_runs,
    with_smaller_step,
)
from gmc_core.training.run_config import RunConfig

DELAYS = (16, 64)


def runs(step_sizes: StepSizes) -> tuple[RunConfig, ...]:
    configs = []
    for delay in DELAYS:
        for name in CORE:
            config = at_tuned(BASE, name, step_sizes, delay=delay)
            configs += [config, with_smaller_step(config)]
    return study_runs(configs, FRESH_SEEDS)


HALF_STEPS = Experiment(
    name="half_steps",
    version=1,
    question="Does half of the tuned step size save the runs that methods lose in main, and at what price?",
    protocol=fill(f"""\
# Protocol: half_steps, version 1 (written 2026-11-30, before the runs)

Question: does half of the tuned step size save the runs that methods lose in `main`, and at what price? Step sizes were
chosen by the area under the curve of one or two tuning seeds, which likes long steps: gmc lost three of five runs at
delay 16 and two of five at delay 64 at the step sizes so chosen.

- Setting of `main` at delays {" and ".join(map(str, DELAYS))}, the ten core methods, seeds
  {", ".join(map(str, FRESH_SEEDS))}: the runs of `main` at the tuned step size and the same at half of it. Known
  when this was written: the former, and of the latter those that `length` has (delay 64, five methods, seeds 10 and 11;
  gmc lost one of two).
- Read per method and delay: runs lost, final accuracy and area at both step sizes; differences to gmc, both at half of
  their own tuned step size, paired by seed, sure when Student's t interval (95 %) leaves out 0.
- What would count for gmc: no more than one run of five lost at half of its step size, and there at least the area of
  every method that loses no more than one. Anything else counts against it.
- Claim C8a is not judged by these runs: its rule was fixed before, for the tuned step sizes.

{DEFINITIONS}"""),
    runs=runs,
    tuning="main_tuning",
)
