"""The first picture of staleness: one common step size, three seeds, 100 updates."""

from __future__ import annotations

from gmc_core.experiments.experiment import Experiment, staleness_grid
from gmc_core.training.run_config import RunConfig

FIRST_ESTIMATORS = ("gmc", "tic_truncate", "tic_mask", "is", "snis", "ppo_clip", "cispo", "uncorrected")

FIRST_STALENESS = Experiment(
    name="first_staleness",
    version=1,
    question="What does the age of the rollouts do to GRPO on a small Qwen3, and which weights repair it?",
    protocol="""\
# Protocol: first_staleness, version 1 (written 2026-11-29, before the runs)

Question: what does the age of the rollouts do to GRPO on a small Qwen3, and which weights repair it?

- Model: the committed warm start `data/tiny_qwen3` (0.45 M parameters). Task: `running_sums`, six digits.
- Runs: gmc, tic_truncate, tic_mask, is, snis, ppo_clip, cispo, uncorrected x delay 0, 32, 64 updates x seeds 0, 1, 2.
  The same seed gives the same prompts to every estimator.
- Setting: SGD, step size 0.2, gradient norm clipped at 0.3, 8 prompts x 16 rollouts an update, 100 updates, epsilon 0.2
  (ppo_clip 0.2 / 0.2, cispo upper bound 0.2), std-normalised advantages, loss divided by prompts x rollouts x maximal
  length. **This setting was found by search** in exploratory runs (on another warm start of the same recipe) that were
  not tuned per method: one common step size for all. A weight's mean acts like a step size, so a difference between
  methods here is not yet a verdict; the tuned comparison is a separate experiment.
- Measured: accuracy of one sampled response (temperature 1) to each of 256 fixed prompts, before training and every
  10 updates. Final accuracy is the last of them, the area under the curve is the mean of those after training began.
  A run has collapsed when its final accuracy is below half of its best.
- With 100 updates and a delay of 64, two thirds of a run learn from the initial policy: this is a first picture of
  large delays, not of a long run at a large delay.
- Nothing is left out: every run of the grid is in the tables, collapsed ones included.

Amended 2026-11-30, after a first look at the results: the accuracy before training counts as a best, so that a run
which never leaves 0 has collapsed too.
""",
    runs=staleness_grid(FIRST_ESTIMATORS, (0, 32, 64), (0, 1, 2), RunConfig()),
)
