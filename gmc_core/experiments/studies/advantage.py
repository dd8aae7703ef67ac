"""(g) Advantage and normaliser, and the group cap not detached."""

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

# Factors on the step size, and on the inverse of the clip, so that the longest update stays the same: rewards of 0 and
# 1 have a standard deviation of 1/2 to 1/4 over most of a run, and every response has 14 tokens.
FACTORS = {"center": (2, 4), "length_corrected": (28, 56)}
NORMALIZERS = ("sequence_mean_token_mean", "token_mean")


def scaled(config: RunConfig, advantage: str, factor: int) -> RunConfig:
    """`config` with another advantage, the step size times `factor` and the clip divided by it."""
    return config.replace(
        advantage=advantage,
        learning_rate=round(config.learning_rate * factor, 4),
        gradient_clip=round(config.gradient_clip / factor, 6),
    )


def runs(step_sizes: StepSizes) -> tuple[RunConfig, ...]:
    configs = []
    for name in FIVE:
        config = at_tuned(AT_STUDY_DELAY, name, step_sizes)
        centered = [scaled(config, "center", factor) for factor in FACTORS["center"]]
        corrected = [scaled(config, "length_corrected", factor) for factor in FACTORS["length_corrected"]]
        configs += [config, *centered, *corrected]
        configs += [config.replace(normalizer=normalizer) for normalizer in NORMALIZERS]
        if name == "gmc":
            configs += [each.replace(detached=False) for each in (config, *centered)]
    return study_runs(configs)


ADVANTAGE = Experiment(
    name="advantage",
    version=1,
    question="Do advantage, normaliser and the stop-gradient of the cap change the picture?",
    protocol=fill(f"""\
# Protocol: advantage, version 1 (written 2026-11-30, before the runs)

Question: do advantage, normaliser and the stop-gradient of the cap change the picture?

- Setting of `main` at delay {STUDY_DELAY}, seeds 10, 11, 12; methods {", ".join(FIVE)}, each from the step size that
  `main_tuning` chose for it at this delay (with std-normalised advantages).
- Advantages: std-normalised (that of `main`), mean-centred (the theory's) and length-corrected. The last two are
  smaller, so their step sizes are multiplied by 2 and 4 (mean-centred) and by 14 times that (length-corrected) and
  their clip is divided by the same factor, which leaves the longest possible update as it is. The better factor is
  read per method.
- Normalisers, with std advantages: that of `main` (constant maximal length), mean over the tokens of each response,
  mean over the tokens of the step. Well-formed responses of this task all have 14 tokens, so they can differ only
  through malformed ones.
- For gmc, also the objective whose group cap is not detached (docs/theory.md section 7), std and mean-centred.

{DEFINITIONS}"""),
    runs=runs,
    tuning="main_tuning",
)
