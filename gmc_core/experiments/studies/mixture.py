"""(h) The lead of an exploratory study: the defensive mixture ratio with a cap on its group mean. Ours."""

from __future__ import annotations

from gmc_core.experiments.experiment import Experiment, StepSizes
from gmc_core.experiments.protocols import fill
from gmc_core.experiments.studies.common import (
    BASE,
    DEFINITIONS,
    SETTING,
    STEP_SIZES,
    TUNING_SEEDS,
    study_runs,
    with_estimator,
)
from gmc_core.training.run_config import RunConfig

DELAYS = (32, 64)
ALPHAS = (0.1, 0.2, 0.5)
SEEDS = tuple(range(20, 30))


def candidates() -> tuple[RunConfig, ...]:
    """gmc and the mixtures; alpha 0.2 is the default and left to the estimator."""
    options = [{} if alpha == 0.2 else {"alpha": alpha} for alpha in ALPHAS]
    return (
        with_estimator(BASE, "gmc"),
        *(with_estimator(BASE, "mixture", estimator_options=each) for each in options),
    )


def tuning_runs() -> tuple[RunConfig, ...]:
    return tuple(
        config.replace(delay=delay, seed=seed, learning_rate=rate)
        for seed in TUNING_SEEDS
        for delay in DELAYS
        for config in candidates()
        for rate in STEP_SIZES
    )


def fresh_runs(step_sizes: StepSizes) -> tuple[RunConfig, ...]:
    placed = [config.replace(delay=delay) for delay in DELAYS for config in candidates()]
    return study_runs((config.replace(learning_rate=step_sizes(config)) for config in placed), SEEDS)


MIXTURE_TUNING = Experiment(
    name="mixture_tuning",
    version=1,
    question="Which step size does each mixture want?",
    protocol=fill(f"""\
# Protocol: mixture_tuning, version 1 (written 2026-11-30, before the runs)

Question: which step size does each defensive mixture want, and gmc beside it?

{SETTING}\
- gmc, and mixture with alpha {", ".join(map(str, ALPHAS))}, at delays {" and ".join(map(str, DELAYS))}, step sizes
  {", ".join(map(str, STEP_SIZES))}, tuning seeds {" and ".join(map(str, TUNING_SEEDS))}.
- The rule is that of `main_tuning`, with both seeds and smoothing over these two delays.

{DEFINITIONS}"""),
    runs=tuning_runs(),
    keep_metrics=False,
)

MIXTURE = Experiment(
    name="mixture",
    version=1,
    question="Does the defensive mixture ratio improve on GMC?",
    protocol=fill(f"""\
# Protocol: mixture, version 1 (written 2026-11-30, before the runs)

Question: does the defensive mixture ratio r / (alpha r + 1 - alpha), with a group cap on its mean, improve on GMC? It
was the one lead of an exploratory study that found no winner, and it is ours, not the paper's. Whatever comes is
reported.

{SETTING}\
- gmc, and mixture with alpha {", ".join(map(str, ALPHAS))}, at delays {" and ".join(map(str, DELAYS))}, each at the
  step size that `mixture_tuning` chose for it; fresh seeds {SEEDS[0]} to {SEEDS[-1]}.
- Read: the paired difference to gmc in final accuracy and in area under the curve at each delay, six comparisons a
  measure. A mixture counts as better if its 95 % interval stays above 0 after a Bonferroni correction over the six.

{DEFINITIONS}"""),
    runs=fresh_runs,
    tuning="mixture_tuning",
)
