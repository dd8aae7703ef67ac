"""What the studies share: the base setting, the menus, the seeds, the tuned step sizes and the definitions."""

from __future__ import annotations

import math
from collections.abc import Iterable

from gmc_core.estimators import ESTIMATORS
from gmc_core.experiments.experiment import StepSizes
from gmc_core.training.run_config import RunConfig

BASE = RunConfig(updates=200, evaluation_every=20)
CORE = (
    "gmc",
    "tic_truncate",
    "tic_mask",
    "water_filling",
    "snis",
    "is",
    "ppo_clip",
    "cispo",
    "m2po",
    "uncorrected",
)
REST = tuple(name for name in ESTIMATORS if name not in CORE)
FIVE = ("gmc", "tic_truncate", "tic_mask", "snis", "ppo_clip")  # of the smaller studies; one of them is token-level
STEP_SIZES = tuple(round(0.05 * 2 ** (k / 2), 4) for k in range(6))  # .05, .0707, .1, .1414, .2, .2828
TUNING_SEEDS = (100, 101)
FRESH_SEEDS = (10, 11, 12, 13, 14)
STUDY_DELAY = 64
AT_STUDY_DELAY = BASE.replace(delay=STUDY_DELAY)

DEFINITIONS = """\
## Definitions

- An evaluation is one sampled response (temperature 1) to each of 256 fixed prompts, before training and every 20
  updates. *Final accuracy* is the last one (standard error of one evaluation: up to 0.031). The *area under the curve*
  is the mean of the evaluations after training began.
- *Fallen*: accuracy below half of the best so far, the one before training included. A run that is fallen at its end
  has *collapsed*; a fall from which it comes back is a *dip*.
- *Usable step-size range*: the step sizes next to the best one, without a gap, whose area under the curve is at least
  95 % of its own. It is read from the tuning runs.
- Intervals come from a bootstrap over seeds; differences to GMC are paired by seed (the same seed has the same prompts,
  whatever the method). With fewer than five seeds the seeds are shown one by one.
- Nothing is left out: every run of the grid is in the tables, collapsed ones included.
"""

SETTING = """\
- Model: the committed warm start `data/tiny_qwen3` (0.45 M parameters). Task: `running_sums`, six digits.
- Learner: SGD, gradient norm clipped at 0.3, 8 prompts x 16 rollouts an update, 200 updates, std-normalised advantages,
  loss divided by prompts x rollouts x maximal length; every estimator at the defaults of the menu (epsilon 0.2).
"""


def with_estimator(base: RunConfig, name: str, **changes: object) -> RunConfig:
    """`base` with an estimator of the menu and the normaliser that the estimator's derivation assumes, if any."""
    normalizer = ESTIMATORS[name].normalizer or base.normalizer
    return base.replace(estimator=name, normalizer=normalizer, **changes)


def next_larger(step_size: float) -> float:
    """The step size after this one on the grid .025 * sqrt(2)^k, rounded as the grids round it."""
    place = round(2 * math.log2(step_size / 0.025))
    return round(0.025 * 2 ** ((place + 1) / 2), 4)


def with_smaller_step(config: RunConfig, divisor: int = 2) -> RunConfig:
    """`config` at its step size divided by `divisor`, rounded as the grids round it."""
    return config.replace(learning_rate=round(config.learning_rate / divisor, 4))


def at_tuned(base: RunConfig, name: str, step_sizes: StepSizes, **changes: object) -> RunConfig:
    """`with_estimator` at the step size that was tuned for this estimator at this delay."""
    config = with_estimator(base, name, **changes)
    return config.replace(learning_rate=step_sizes(config))


def study_runs(configs: Iterable[RunConfig], seeds: Iterable[int] = FRESH_SEEDS[:3]) -> tuple[RunConfig, ...]:
    """Every config at every seed, seeds outermost so that a first picture of everything comes early."""
    configs = list(configs)
    return tuple(config.replace(seed=seed) for seed in seeds for config in configs)
