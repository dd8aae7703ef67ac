"""A weight's mean apart from its shape: rules rescaled to the group mean of another."""

from __future__ import annotations

from gmc_core.experiments.experiment import Experiment, StepSizes
from gmc_core.experiments.protocols import fill
from gmc_core.experiments.studies.common import (
    BASE,
    DEFINITIONS,
    FRESH_SEEDS,
    at_tuned,
    study_runs,
    with_estimator,
)
from gmc_core.training.run_config import RunConfig

DELAYS = (32, 64)
SHAPES = ("tic_truncate", "tic_mask", "ppo_clip", "uncorrected")  # with the mean of gmc
MEANS = ("tic_truncate", "tic_mask")  # for the shape of gmc


def runs(step_sizes: StepSizes) -> tuple[RunConfig, ...]:
    configs = []
    for delay in DELAYS:
        gmc = at_tuned(BASE, "gmc", step_sizes, delay=delay)
        configs += [gmc, *(gmc.replace(rescale_to=name) for name in MEANS)]
        configs += [with_estimator(gmc, name, rescale_to="gmc") for name in SHAPES]
    return study_runs(configs, FRESH_SEEDS)


MEAN_AND_SHAPE = Experiment(
    name="mean_and_shape",
    version=1,
    question="Is it the mean of GMC's weights or their shape inside a group that helps?",
    protocol=fill(f"""\
# Protocol: mean_and_shape, version 1 (written 2026-11-30, before the runs)

Question: is it the mean of GMC's weights or their shape inside a group that helps? The rescaled rules are ours, made to
take the two apart, and nobody's method.

- Setting of `main` at delays {" and ".join(map(str, DELAYS))}, seeds {", ".join(map(str, FRESH_SEEDS))}, all at the
  step size that `main_tuning` chose for gmc at the delay: with equal means, equal step sizes are fair.
- gmc; the shapes of {", ".join(SHAPES)} with the group mean of gmc (`rescale_to="gmc"`); the shape of gmc with the
  group mean of {" and of ".join(MEANS)}. SNIS rescaled to gmc is gmc, and water_filling has its mean already: not run.
- A group whose weights are all 0 (tic_mask can do that) stays at 0, so its mean is not matched there.

{DEFINITIONS}"""),
    runs=runs,
    tuning="main_tuning",
)
