"""(b) Optimiser and step length: are weights for bias and step length for stability?"""

from __future__ import annotations

from gmc_core.experiments.experiment import Experiment, StepSizes
from gmc_core.experiments.protocols import fill
from gmc_core.experiments.studies.common import (
    AT_STUDY_DELAY,
    DEFINITIONS,
    FIVE,
    STUDY_DELAY,
    at_tuned,
    study_runs,
)
from gmc_core.training.run_config import RunConfig

BOUNDS = (0.03, 0.1)


def runs(step_sizes: StepSizes) -> tuple[RunConfig, ...]:
    configs = []
    for name in FIVE:
        sgd = at_tuned(AT_STUDY_DELAY, name, step_sizes)
        free = sgd.replace(gradient_clip=None)
        adamw = free.replace(optimizer="adamw")
        configs += [sgd, free]
        configs += [free.replace(max_update_length=bound) for bound in BOUNDS]
        bounded = free.replace(max_update_length=BOUNDS[0])
        configs += [bounded.replace(learning_rate=round(factor * sgd.learning_rate, 4)) for factor in (2, 4)]
        configs += [adamw.replace(learning_rate=rate) for rate in (3e-5, 1e-4)]
        configs += [adamw.replace(learning_rate=3e-4, max_update_length=BOUNDS[0])]
    return study_runs(configs)


OPTIMIZER = Experiment(
    name="optimizer",
    version=1,
    question="Are weights for bias and step length for stability?",
    protocol=fill(f"""\
# Protocol: optimizer, version 1 (written 2026-11-30, before the runs)

Question: are weights for bias and step length for stability? In exploratory runs a collapse followed long updates,
whatever the weights.

- Setting of `main` at delay {STUDY_DELAY}, seeds 10, 11, 12; methods {", ".join(FIVE)}, each at the step size that
  `main_tuning` chose for it at this delay.
- Learners: SGD with the gradient norm clipped at 0.3 (that of `main`); without clipping; without clipping but with the
  Euclidean length of an update bounded by 0.03 or 0.1; the bound 0.03 with twice and four times the step size, which
  asks whether the bound makes a step size usable that is not; AdamW (torch's defaults) at 3e-5 and 1e-4, whose
  updates are about 0.02 and 0.07 long because each of the 0.45 million parameters moves by about the step size; AdamW
  at 3e-4 with the bound 0.03. AdamW's step sizes are not tuned per method.
- Read: final accuracy, area under the curve, collapses and dips by learner and method; the length of the updates that
  precede a collapse (update_length in the tables).
- Left out: momentum, weight decay other than torch's default for AdamW, schedules.

{DEFINITIONS}"""),
    runs=runs,
    tuning="main_tuning",
)
