"""(c) Group size at a fixed number of prompts."""

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

GROUP_SIZES = (4, 8, 16, 32, 64)
SINGLE_PASS = dict.fromkeys(GROUP_SIZES, AT_STUDY_DELAY.micro_batch_tokens) | {64: 16384}  # one pass an update


def runs(step_sizes: StepSizes) -> tuple[RunConfig, ...]:
    return study_runs(
        at_tuned(AT_STUDY_DELAY, name, step_sizes, group_size=size, micro_batch_tokens=SINGLE_PASS[size])
        for size in GROUP_SIZES
        for name in FIVE
    )


GROUP_SIZE = Experiment(
    name="group_size",
    version=1,
    question="What does a larger group buy each method at a large delay?",
    protocol=fill(f"""\
# Protocol: group_size, version 1 (written 2026-11-30, before the runs)

Question: what does a larger group buy each method at a large delay? The bias of GMC vanishes as the group grows, that
of truncating or masking each rollout alone does not; the variance of all of them falls.

- Setting of `main` at delay {STUDY_DELAY}, seeds 10, 11, 12; methods {", ".join(FIVE)}.
- Group size {", ".join(map(str, GROUP_SIZES))} at 8 prompts an update: the number of prompts is fixed, not that of
  rollouts, so a larger group is also more data.
- Step size: that which `main_tuning` chose for the method at this delay with groups of 16, for every group size. A
  smaller group may want a smaller one; this is not tuned.

{DEFINITIONS}"""),
    runs=runs,
    tuning="main_tuning",
)
