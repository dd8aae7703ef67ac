"""(e) Length: ratios are products over tokens."""

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
    with_smaller_step,
)
from gmc_core.training.run_config import RunConfig

MODELS = {6: "data/tiny_qwen3", 12: "data/warm_starts/digits_12", 24: "data/warm_starts/digits_24"}


def runs(step_sizes: StepSizes) -> tuple[RunConfig, ...]:
    configs = []
    for digits, model in MODELS.items():
        options = {} if digits == 6 else {"digits": digits}
        for name in FIVE:
            config = at_tuned(AT_STUDY_DELAY, name, step_sizes, task_options=options, model=model)
            if digits == 24:
                config = config.replace(micro_batch_tokens=16384)  # one pass an update
            configs += [config, with_smaller_step(config)]
    return study_runs(configs, FRESH_SEEDS[:2])


LENGTH = Experiment(
    name="length",
    version=1,
    question="What does the length of a response do to corrections that multiply over its tokens?",
    protocol=fill(f"""\
# Protocol: length, version 1 (written 2026-11-30, before the runs)

Question: what does the length of a response do to corrections that multiply over its tokens? The spread of a trajectory
ratio grows with length, a token ratio's does not.

- Setting of `main` at delay {STUDY_DELAY}, seeds 10 and 11 (few: shown one by one); methods {", ".join(FIVE)}.
- Tasks of 6, 12 and 24 digits: responses of 14, 26 and 50 tokens, from warm starts of their own (`data/warm_starts`) of
  about the same sampled accuracy, so that the reward is as frequent at every length.
- Step sizes: that which `main_tuning` chose for the method at 6 digits, and half of it, because longer responses may
  want shorter steps; the better of the two is read, per method and length.
- The loss is divided by the maximal length of the task, as in `main`.

{DEFINITIONS}"""),
    runs=runs,
    tuning="main_tuning",
)
